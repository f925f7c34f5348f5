// Quantized rows times a packed matrix. The result has the same bits on every instruction set, and for a row whatever
// its neighbours: for each channel, from its first group to its last,
//
//   Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL   total = fma(dot, scale * x_scale, total)
//   MXFP4                                  total = fma(dot, 2^(e - 128) * x_scale, total)
//   Q4_K, Q5_K, IQ4_XS                     total = fma(dot, (d * scale) * x_scale, total)
//   Q6_K, Q3_K, Q2_K                       total = fma(s0 * dot0 + s1 * dot1, d * x_scale, total)
//
// where dot = sum of (code - zero) * x is exact, in integers and as a float: it is below 2^24 in all formats, and so is
// s0 * dot0 + s1 * dot1. Some have
//
//   Q4_1, Q5_1   shifted = fma(x_total, m, shifted)
//   Q4_K, Q5_K   shifted = fma(x_total, -(dmin * minimum), shifted)
//   Q2_K         the same for each half of the group, one after the other
//
// beside it, where x_total = (sum of x) * x_scale, and their result is total + shifted.
#pragma once
#include "scales.h"

namespace ldf {
namespace LDF_ISA {

constexpr int AHEAD = 4096;  // bytes; few rows wait for memory, so codes are asked for before they are met

template <class Codes>
void prefetch(const uint8_t* codes) {
  for (int line = 0; line < Codes::bytes; line += 64) __builtin_prefetch(codes + AHEAD + line);
}

// `rows` rows times one panel.
template <class Format, int rows>
void tile(Panel at, Inputs x, const float* x_scales, const float* x_totals, float* out, ptrdiff_t stride) {
  using Codes = typename Format::Codes;
  const int groups = static_cast<int>(x.k / GROUP);
  Lanes total[rows], shifted[rows];
  for (int r = 0; r < rows; r++) total[r] = shifted[r] = splat(0.0f);
  if constexpr (Format::shifts) Format::Shift::template add_to<rows>(shifted, at, x, x_scales, x_totals);
  Dots::begin<rows, Codes>();
  for (int group = 0; group < groups; group++) {
    prefetch<Codes>(at.codes);
    const typename Format::Scales scales(at);
    Lanes dot[rows];
    scales.template dots<rows, Codes>(at.codes, x, dot);
    for (int r = 0; r < rows; r++) {
      total[r] = scales.add(dot[r], splat(x_scales[r * groups + group]), total[r]);
    }
    at.codes += Format::sizes.codes;
    at.scales += Format::sizes.scales;
    if (group % GROUPS == GROUPS - 1) at.supers += Format::sizes.supers;
    x.codes += GROUP;
    x.sums += 2;
  }
  for (int r = 0; r < rows; r++) store(out + r * stride, Format::shifts ? add(total[r], shifted[r]) : total[r]);
}

// The same for a number of rows known when it runs, up to `most`.
template <class Format, int most>
void tile_of(int rows, const Panel& at, const Inputs& x, const float* x_scales, const float* x_totals, float* out,
             ptrdiff_t stride) {
  if (rows == most) return tile<Format, most>(at, x, x_scales, x_totals, out, stride);
  if constexpr (most > 1) tile_of<Format, most - 1>(rows, at, x, x_scales, x_totals, out, stride);
}

template <class Format>
void product_of(const Matrix& weights, const Rows& x, int rows, int first, int last, float* out, ptrdiff_t stride) {
  constexpr int most = Dots::tile<typename Format::Codes>;
  const ptrdiff_t k = weights.k;
  for (int panel = first; panel < last; panel++) {
    const Panel at = panel_of(weights, panel, Format::sizes);
    for (int row = 0; row < rows;) {
      const int tiles = (rows - row + most - 1) / most;
      const int count = (rows - row + tiles - 1) / tiles;  // as equal as can be
      const Inputs inputs = {x.codes + row * k, x.sums + row * (k / 16), k};
      const ptrdiff_t group = row * (k / GROUP);
      tile_of<Format, most>(count, at, inputs, x.scales + group, x.totals + group, out + row * stride, stride);
      row += count;
    }
    out += PANEL;
  }
  Dots::end();
}

inline void product(const Matrix* weights, const Rows* x, int32_t rows, int32_t first, int32_t last, float* out,
                    ptrdiff_t stride) {
  with_format(weights->kind, [&](auto format) {
    product_of<decltype(format)>(*weights, *x, rows, first, last, out, stride);
  });
}

// The integer products of `count` groups of 32 inputs, 16 channels and a row, 8-bit codes, all in the nearest cache.
inline int32_t peak(int64_t count) {
  constexpr int rows = Dots::tile<EightBits>, groups = 4;
  alignas(64) uint8_t codes[groups * PANEL * GROUP];
  int8_t x[rows * GROUP * groups];
  int32_t x_sums[rows * groups * 2] = {};
  for (int i = 0; i < groups * PANEL * GROUP; i++) codes[i] = static_cast<uint8_t>(i * 37);
  for (int i = 0; i < rows * GROUP * groups; i++) x[i] = static_cast<int8_t>(i % 255 - 127);
  Sums total = zero_sums();
  Dots::begin<rows, EightBits>();
  for (int64_t done = 0; done < count; done += rows) {
    const int64_t group = done / rows % groups;
    const Inputs inputs = {x + group * GROUP, x_sums + group * 2, GROUP * groups};
    Sums dot[rows];
    Dots::dot<rows, EightBits, 0>(codes + group * PANEL * GROUP, inputs, dot);
    for (int r = 0; r < rows; r++) total = add(total, dot[r]);
  }
  Dots::end();
  return sum(total);
}

}  // namespace LDF_ISA
}  // namespace ldf
