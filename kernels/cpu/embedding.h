// One row of a packed matrix as floats: the embedding of a token.
#pragma once
#include "formats.h"
#include "products.h"
#include "simd.h"

namespace ldf {
namespace LDF_ISA {
namespace {

float half_to_float(uint16_t half) {
  uint16_t lanes[16] = {half};
  float out[16];
  store(out, load_half(lanes));
  return out[0];
}

// A weight of a group is (code - zero) * scale - minimum; each half of the group has a scale.
struct Scaling {
  int zero;
  float scale[2], minimum;
};

Scaling scaling_of(const Matrix& matrix, size_t panel, int group, int channel) {
  const size_t at = panel * (matrix.k / GROUP) + group;
  const size_t super = panel * (matrix.k / SUPER) + group / (SUPER / GROUP);
  const uint8_t* scales = matrix.scales + at * sizes_of(matrix.kind).scales;
  if (matrix.kind == Q4_K) {
    const uint16_t* supers = matrix.supers + super * 2 * PANEL + channel;
    const float scale = half_to_float(supers[0]) * scales[channel];
    return {0, {scale, scale}, half_to_float(supers[PANEL]) * scales[PANEL + channel]};
  }
  if (matrix.kind == Q6_K) {
    const float d = half_to_float(matrix.supers[super * PANEL + channel]);
    return {32, {d * (int8_t)scales[channel], d * (int8_t)scales[PANEL + channel]}, 0};
  }
  const float scale = half_to_float(reinterpret_cast<const uint16_t*>(scales)[channel]);
  if (matrix.kind == Q4_1) return {0, {scale, scale}, -half_to_float(matrix.supers[at * PANEL + channel])};
  return {matrix.kind == Q4_0 ? 8 : 128, {scale, scale}, 0};
}

void weight_row(const Matrix& matrix, int row, float* out) {
  const int groups = matrix.k / GROUP, channel = row % PANEL;
  const int code_bytes = sizes_of(matrix.kind).codes;
  const bool narrow = code_bytes == 256;
  const size_t panel = row / PANEL;
  for (int g = 0; g < groups; g++) {
    const Scaling s = scaling_of(matrix, panel, g, channel);
    const uint8_t* codes = matrix.codes + (panel * groups + g) * code_bytes + channel * 4;
    for (int k = 0; k < GROUP; k++) {
      const int quad = k / 4;
      const uint8_t byte = codes[(narrow ? quad / 2 : quad) * 64 + k % 4];
      const int code = !narrow ? byte : quad % 2 ? byte >> 4 : byte & 15;
      out[g * GROUP + k] = (code - s.zero) * s.scale[k / 16] - s.minimum;
    }
  }
}

}  // namespace
}  // namespace LDF_ISA
}  // namespace ldf
