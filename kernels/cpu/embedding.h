// Reads one row of a packed matrix as floats: the embedding of a token.
#pragma once
#include "scales.h"

namespace ldf {
namespace LDF_ISA {
namespace {

float lane(Lanes x, int i) {
  float all[16];
  store(all, x);
  return all[i];
}

// A weight is (code - zero) * scale + shift.
template <class Format>
void dequantize_row_of(const Matrix& matrix, int row, float* out) {
  using Codes = typename Format::Codes;
  const Panel panel = panel_of(matrix, row / PANEL, Format::sizes);
  const int groups = matrix.k / GROUP, channel = row % PANEL;
  for (int group = 0; group < groups; group++) {
    const Panel at = {panel.codes + (size_t)group * Format::sizes.codes,
                      panel.scales + (size_t)group * Format::sizes.scales,
                      panel.supers + (size_t)(group / GROUPS) * Format::sizes.supers};
    const typename Format::Scales scales(at);
    for (int half = 0; half < 2; half++) {
      const float scale = lane(scales.of(half), channel), shift = lane(Format::Shift::at(panel, group, half), channel);
      for (int i = half * 16; i < half * 16 + 16; i++) {
        const float value = (code_of<Codes>(at.codes, i / 4, 4 * channel + i % 4) - Codes::zero) * scale;
        out[group * GROUP + i] = Format::shifts ? value + shift : value;
      }
    }
  }
}

void dequantize_row(const Matrix& matrix, int row, float* out) {
  with_format(matrix.kind, [&](auto format) { dequantize_row_of<decltype(format)>(matrix, row, out); });
}

}  // namespace
}  // namespace LDF_ISA
}  // namespace ldf
