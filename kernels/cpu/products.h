// Quantized rows times a packed matrix. A row's result has the same bits on every instruction set and in any batch: for
// each channel, from its first group to its last,
//
//   Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL   total = fma(dot, scale * x_scale, total)
//   MXFP4                                  total = fma(dot, 2^(e - 128) * x_scale, total)
//   Q4_K, Q5_K, IQ4_XS                     total = fma(dot, (d * scale) * x_scale, total)
//   Q6_K, Q3_K, Q2_K                       total = fma(s0 * dot0 + s1 * dot1, d * x_scale, total)
//
// where dot = sum of (code - zero) * x is exact, as an integer and as a float: it is below 2^24 in all formats, and so
// is s0 * dot0 + s1 * dot1. Some formats add
//
//   Q4_1, Q5_1   shifted = fma(x_total, m, shifted)
//   Q4_K, Q5_K   shifted = fma(x_total, -(dmin * minimum), shifted)
//   Q2_K         likewise for each half of the group in sequence
//
// where x_total = (sum of x) * x_scale, and their result is total + shifted.
#pragma once
#include "scales.h"

namespace ldf {
namespace LDF_ISA {

constexpr int FEW_ROWS = 2;

// The next panels to prefetch, and the index of this tile among the tiles that use the current panels.
struct NextPanels {
  Panel next;
  int tile, tiles;
};

// Prefetches the next panels while a tile computes. The tiles that use the same panels share this work; each spreads
// its part over its groups.
template <class Format, int panels>
class SharedPrefetch {
 public:
  SharedPrefetch(const NextPanels& next_panels, int groups)
      : share_(panels * Format::Codes::bytes / next_panels.tiles),
        at_(next_panels.next.codes + share_ * groups * next_panels.tile),
        to_(at_) {
    fetch_part(next_panels, next_panels.next.scales, panels * groups * Format::sizes.scales);
    fetch_part(next_panels, next_panels.next.supers, panels * groups * Format::sizes.supers / GROUPS * 2);
  }

  LDF_INLINE void fetch() {
    to_ += share_;
    for (; at_ < to_; at_ += LINE) __builtin_prefetch(at_, 0, SECOND_CACHE);
  }

 private:
  static constexpr int LINE = 64, SECOND_CACHE = 2;  // not the nearest cache, which the rows need

  static void fetch_part(const NextPanels& next_panels, const void* all, ptrdiff_t bytes) {
    const auto* from = static_cast<const uint8_t*>(all);
    const ptrdiff_t end = bytes * (next_panels.tile + 1) / next_panels.tiles;
    for (ptrdiff_t i = bytes * next_panels.tile / next_panels.tiles; i < end; i += LINE) {
      __builtin_prefetch(from + i, 0, SECOND_CACHE);
    }
  }

  ptrdiff_t share_;  // bytes of codes for each group
  const uint8_t *at_, *to_;
};

// Prefetches the codes that follow, and the next panel's scales, for one or two rows, which are limited by memory.
template <class Format>
class OwnPrefetch {
 public:
  OwnPrefetch(const Panel& at, const Sizes& distance)
      : codes_(at.codes + DISTANCE), scales_(at.scales + distance.scales), supers_(at.supers + distance.supers) {}

  LDF_INLINE void fetch() {
    for (int line = 0; line < Format::Codes::bytes; line += 64) __builtin_prefetch(codes_ + line);
    __builtin_prefetch(scales_);
    if constexpr (Format::sizes.supers > 0) __builtin_prefetch(supers_);
    codes_ += Format::Codes::bytes;
    scales_ += Format::sizes.scales;
    supers_ += Format::sizes.supers / GROUPS;
  }

 private:
  static constexpr int DISTANCE = 4096;  // bytes

  const uint8_t *codes_, *scales_;
  const uint16_t* supers_;
};

// Multiplies `rows` rows with one or two adjacent panels.
template <class Format, int rows, int panels>
void tile(Panel at, Inputs x, const float* x_scales, const float* x_totals, float* out, ptrdiff_t stride,
          const NextPanels& next_panels) {
  using Codes = typename Format::Codes;
  using Scales = typename Format::Scales;
  constexpr int sums = panels * rows;  // index of panel p and row r: p * rows + r
  const int groups = static_cast<int>(x.k / GROUP);
  const Sizes distance = Format::sizes.of(groups);
  Lanes total[sums], shifted[sums];
#pragma GCC unroll 16
  for (int i = 0; i < sums; i++) total[i] = shifted[i] = splat(0.0f);
  if constexpr (Format::shifts) {
    Format::Shift::template add_to<rows, panels>(shifted, at, distance, x, x_scales, x_totals);
  }
  Dots::begin<rows, Codes>();
  auto prefetch = [&] {
    if constexpr (rows <= FEW_ROWS) {
      return OwnPrefetch<Format>(at, distance);
    } else {
      return SharedPrefetch<Format, panels>(next_panels, groups);
    }
  }();
  for (int group = 0; group < groups; group++) {
    prefetch.fetch();
    const Scales scales[2] = {Scales(at), Scales(panels == 2 ? at.next_panel(distance) : at)};
    Lanes dot[sums];
    scales[0].template dots<rows, panels, Codes>(at.codes, distance.codes, x, dot);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const Lanes x_scale = splat(x_scales[r * groups + group]);
      total[r] = scales[0].add(dot[r], x_scale, total[r]);
      if constexpr (panels == 2) total[rows + r] = scales[1].add(dot[rows + r], x_scale, total[rows + r]);
    }
    at.codes += Format::sizes.codes;
    at.scales += Format::sizes.scales;
    if (group % GROUPS == GROUPS - 1) at.supers += Format::sizes.supers;
    x.codes += GROUP;
    x.sums += 2;
  }
#pragma GCC unroll 16
  for (int i = 0; i < sums; i++) {
    store(out + i % rows * stride + i / rows * PANEL, Format::shifts ? add(total[i], shifted[i]) : total[i]);
  }
}

// Dispatches on the number of rows, up to `max_rows`.
template <class Format, int max_rows, int panels>
void dispatch_tile(int rows, const Panel& at, const Inputs& x, const float* x_scales, const float* x_totals, float* out,
             ptrdiff_t stride, const NextPanels& next_panels) {
  if (rows == max_rows) return tile<Format, max_rows, panels>(at, x, x_scales, x_totals, out, stride, next_panels);
  if constexpr (max_rows > 1) {
    dispatch_tile<Format, max_rows - 1, panels>(rows, at, x, x_scales, x_totals, out, stride, next_panels);
  }
}

// Multiplies all rows with `panels` panels, in tiles of nearly equal size, at most `max_rows` rows each.
template <class Format, int max_rows, int panels>
void multiply_panels(const Matrix& weights, const Rows& x, int rows, int panel, float* out, ptrdiff_t stride) {
  const ptrdiff_t k = weights.k;
  const Panel at = panel_of(weights, panel, Format::sizes), next = panel_of(weights, panel + panels, Format::sizes);
  const int tiles = (rows + max_rows - 1) / max_rows;
  for (int tile = 0; tile < tiles; tile++) {
    const ptrdiff_t row = rows * tile / tiles, group = row * (k / GROUP);
    const int count = rows * (tile + 1) / tiles - static_cast<int>(row);
    const Inputs inputs = {x.codes + row * k, x.sums + row * (k / 16), k};
    dispatch_tile<Format, max_rows, panels>(count, at, inputs, x.scales + group, x.totals + group, out + row * stride,
                                            stride, {next, tile, tiles});
  }
}

template <class Format>
void product_of(const Matrix& weights, const Rows& x, int rows, int first, int last, float* out, ptrdiff_t stride) {
  using Codes = typename Format::Codes;
  constexpr int wide = Dots::wide_tile<Codes>;
  int panel = first;
  if constexpr (wide > 0) {
    for (; rows >= Dots::MIN_WIDE_ROWS && panel + 1 < last; panel += 2, out += 2 * PANEL) {
      multiply_panels<Format, wide, 2>(weights, x, rows, panel, out, stride);
    }
  }
  for (; panel < last; panel++, out += PANEL) {
    multiply_panels<Format, Dots::tile<Codes>, 1>(weights, x, rows, panel, out, stride);
  }
  Dots::end();
}

inline void product(const Matrix* weights, const Rows* x, int32_t rows, int32_t first, int32_t last, float* out,
                    ptrdiff_t stride) {
  with_format(weights->kind, [&](auto format) {
    product_of<decltype(format)>(*weights, *x, rows, first, last, out, stride);
  });
}

// Multiplies `count` groups of 32 inputs, 16 channels and a row, 8-bit codes, all in the nearest cache.
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
