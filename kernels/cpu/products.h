// Quantized rows times a packed matrix. The result has the same bits on every instruction set, and for a row whatever
// its neighbours: for each channel, from its first group to its last,
//
//   Q8_0, Q4_0, Q4_1   total = fma(dot, scale * x_scale, total)
//   Q4_K               total = fma(dot, (d * scale) * x_scale, total)
//   Q6_K               total = fma(s0 * dot0 + s1 * dot1, d * x_scale, total)
//
// where dot = sum of (code - zero) * x is exact, in integers and as a float: it is below 2^24 in all formats. Some have
//
//   Q4_1               shifted = fma(x_total, m, shifted)
//   Q4_K               shifted = fma(x_total, -(dmin * minimum), shifted)
//
// beside it, where x_total = (sum of x) * x_scale, and their result is total + shifted.
#pragma once
#include "dots.h"
#include "formats.h"
#include "simd.h"

namespace ldf {
namespace LDF_ISA {

// What a panel takes: bytes of codes and of scales for each group, supers (numbers) for each eight groups.
struct Sizes {
  int codes, scales, supers;
};

constexpr Sizes sizes_of(int32_t kind) {
  switch (kind) {
    case Q4_0: return {256, 2 * PANEL, 0};
    case Q4_1: return {256, 2 * PANEL, 8 * PANEL};
    case Q4_K: return {256, 2 * PANEL, 2 * PANEL};
    case Q6_K: return {512, 2 * PANEL, PANEL};
    default: return {512, 2 * PANEL, 0};
  }
}

// Sixteen channels of a matrix, from one group on.
struct Panel {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint16_t* supers;
};

// A format, made of a panel at a group, is what the group's channels are scaled with. `dots` are the integer products
// of a tile's rows, as floats; `add` scales a row's and adds it to the row's total. What is added to every weight of a
// group of a panel, if there is such a thing, is its `shift`.

template <Kind its_kind, int bits, int zero>
struct ByGroup {  // Q8_0, Q4_0
  static constexpr Kind kind = its_kind;
  static constexpr bool shifts = false;
  Lanes scale;

  explicit ByGroup(const Panel& at) : scale(load_half(reinterpret_cast<const uint16_t*>(at.scales))) {}

  template <int rows>
  void dots(const uint8_t* codes, const Inputs& x, Lanes* out) const {
    Sums dot[rows];
    Dots::dot<rows, bits, zero>(codes, x, dot);
    for (int r = 0; r < rows; r++) out[r] = to_float(dot[r]);
  }

  Lanes add(Lanes dot, Lanes x_scale, Lanes total) const { return fma(dot, mul(scale, x_scale), total); }
};

struct Shifted : ByGroup<Q4_1, 4, 0> {  // Q4_1
  static constexpr bool shifts = true;
  using ByGroup::ByGroup;

  static Lanes shift(const Panel& panel, int group) { return load_half(panel.supers + group * PANEL); }
};

struct Halves {  // Q6_K
  static constexpr Kind kind = Q6_K;
  static constexpr bool shifts = false;
  Lanes super, first, second;

  explicit Halves(const Panel& at)
      : super(load_half(at.supers)),
        first(to_float(widen(reinterpret_cast<const int8_t*>(at.scales)))),
        second(to_float(widen(reinterpret_cast<const int8_t*>(at.scales + PANEL)))) {}

  template <int rows>
  void dots(const uint8_t* codes, const Inputs& x, Lanes* out) const {
    Sums dot0[rows], dot1[rows];
    Dots::dot<rows, 6, 32>(codes, x, dot0);
    Dots::dot<rows, 6, 32>(codes + GROUP / 2 * PANEL, {x.codes + GROUP / 2, x.sums + 1, x.k}, dot1);
    // Whole numbers, so nothing is rounded; in floats because some processors are slow at multiplying 32-bit integers.
    for (int r = 0; r < rows; r++) out[r] = fma(to_float(dot0[r]), first, mul(to_float(dot1[r]), second));
  }

  Lanes add(Lanes dot, Lanes x_scale, Lanes total) const { return fma(dot, mul(super, x_scale), total); }
};

struct Minimum {  // Q4_K
  static constexpr Kind kind = Q4_K;
  static constexpr bool shifts = true;
  Lanes scale;

  explicit Minimum(const Panel& at) : scale(mul(load_half(at.supers), to_float(widen(at.scales)))) {}

  template <int rows>
  void dots(const uint8_t* codes, const Inputs& x, Lanes* out) const {
    Sums dot[rows];
    Dots::dot<rows, 4, 0>(codes, x, dot);
    for (int r = 0; r < rows; r++) out[r] = to_float(dot[r]);
  }

  Lanes add(Lanes dot, Lanes x_scale, Lanes total) const { return fma(dot, mul(scale, x_scale), total); }

  static Lanes shift(const Panel& panel, int group) {
    const Lanes super = load_half(panel.supers + (group / (SUPER / GROUP) * 2 + 1) * PANEL);
    return mul(splat(-1.0f), mul(super, to_float(widen(panel.scales + (2 * group + 1) * PANEL))));
  }
};

template <class Scales>
constexpr Sizes SIZES = sizes_of(Scales::kind);

template <class Scales>
constexpr int BITS = Scales::kind == Q6_K ? 6 : SIZES<Scales>.codes == 256 ? 4 : 8;

constexpr int AHEAD = 4096;  // bytes; few rows wait for memory, so codes are asked for before they are met

template <class Scales>
void prefetch(const uint8_t* codes) {
  for (int line = 0; line < SIZES<Scales>.codes; line += 64) __builtin_prefetch(codes + AHEAD + line);
}

template <class Scales>
inline Panel panel_of(const Matrix& weights, int panel) {
  const ptrdiff_t group = static_cast<ptrdiff_t>(panel) * (weights.k / GROUP);
  return {weights.codes + group * SIZES<Scales>.codes, weights.scales + group * SIZES<Scales>.scales,
          weights.supers + group * SIZES<Scales>.supers / (SUPER / GROUP)};
}

// What the shifts of a panel make of rows: a sum of its own, because beside the products the registers cannot hold it.
template <class Scales, int rows>
void add_shifts(const Panel& at, int groups, const float* totals, Lanes* shifted) {
  for (int group = 0; group < groups; group++) {
    const Lanes shift = Scales::shift(at, group);
    for (int r = 0; r < rows; r++) shifted[r] = fma(splat(totals[r * groups + group]), shift, shifted[r]);
  }
}

// `rows` rows times one panel.
template <class Scales, int rows>
void tile(Panel at, Inputs x, const float* x_scales, const float* x_totals, float* out, ptrdiff_t stride) {
  const int groups = static_cast<int>(x.k / GROUP);
  Lanes total[rows], shifted[rows];
  for (int r = 0; r < rows; r++) total[r] = shifted[r] = splat(0.0f);
  if constexpr (Scales::shifts) add_shifts<Scales, rows>(at, groups, x_totals, shifted);
  Dots::begin<rows, BITS<Scales>>();
  for (int group = 0; group < groups; group++) {
    prefetch<Scales>(at.codes);
    const Scales scales(at);
    Lanes dot[rows];
    scales.template dots<rows>(at.codes, x, dot);
    for (int r = 0; r < rows; r++) {
      total[r] = scales.add(dot[r], splat(x_scales[r * groups + group]), total[r]);
    }
    at.codes += SIZES<Scales>.codes;
    at.scales += SIZES<Scales>.scales;
    if (group % (SUPER / GROUP) == SUPER / GROUP - 1) at.supers += SIZES<Scales>.supers;
    x.codes += GROUP;
    x.sums += 2;
  }
  for (int r = 0; r < rows; r++) store(out + r * stride, Scales::shifts ? add(total[r], shifted[r]) : total[r]);
}

// The same for a number of rows known when it runs, up to `most`.
template <class Scales, int most>
void tile_of(int rows, const Panel& at, const Inputs& x, const float* x_scales, const float* x_totals, float* out,
             ptrdiff_t stride) {
  if (rows == most) return tile<Scales, most>(at, x, x_scales, x_totals, out, stride);
  if constexpr (most > 1) tile_of<Scales, most - 1>(rows, at, x, x_scales, x_totals, out, stride);
}

template <class Scales>
void product_of(const Matrix& weights, const Rows& x, int rows, int first, int last, float* out, ptrdiff_t stride) {
  constexpr int most = Dots::tile<BITS<Scales>>;
  const ptrdiff_t k = weights.k;
  for (int panel = first; panel < last; panel++) {
    const Panel at = panel_of<Scales>(weights, panel);
    for (int row = 0; row < rows;) {
      const int tiles = (rows - row + most - 1) / most;
      const int count = (rows - row + tiles - 1) / tiles;  // as equal as can be
      const Inputs inputs = {x.codes + row * k, x.sums + row * (k / 16), k};
      const ptrdiff_t group = row * (k / GROUP);
      tile_of<Scales, most>(count, at, inputs, x.scales + group, x.totals + group, out + row * stride, stride);
      row += count;
    }
    out += PANEL;
  }
  Dots::end();
}

inline void product(const Matrix* weights, const Rows* x, int32_t rows, int32_t first, int32_t last, float* out,
                    ptrdiff_t stride) {
  switch (weights->kind) {
    case Q8_0: return product_of<ByGroup<Q8_0, 8, 128>>(*weights, *x, rows, first, last, out, stride);
    case Q4_0: return product_of<ByGroup<Q4_0, 4, 8>>(*weights, *x, rows, first, last, out, stride);
    case Q4_1: return product_of<Shifted>(*weights, *x, rows, first, last, out, stride);
    case Q4_K: return product_of<Minimum>(*weights, *x, rows, first, last, out, stride);
    case Q6_K: return product_of<Halves>(*weights, *x, rows, first, last, out, stride);
  }
}

// The integer products of `count` groups of 32 inputs, 16 channels and a row, 8-bit codes, all in the nearest cache.
inline int32_t peak(int64_t count) {
  constexpr int rows = Dots::tile<8>, groups = 4;
  alignas(64) uint8_t codes[groups * PANEL * GROUP];
  int8_t x[rows * GROUP * groups];
  int32_t x_sums[rows * groups * 2] = {};
  for (int i = 0; i < groups * PANEL * GROUP; i++) codes[i] = static_cast<uint8_t>(i * 37);
  for (int i = 0; i < rows * GROUP * groups; i++) x[i] = static_cast<int8_t>(i % 255 - 127);
  Sums total = zero_sums();
  Dots::begin<rows, 8>();
  for (int64_t done = 0; done < count; done += rows) {
    const int64_t group = done / rows % groups;
    const Inputs inputs = {x + group * GROUP, x_sums + group * 2, GROUP * groups};
    Sums dot[rows];
    Dots::dot<rows, 8, 128>(codes + group * PANEL * GROUP, inputs, dot);
    for (int r = 0; r < rows; r++) total = add(total, dot[r]);
  }
  Dots::end();
  return sum(total);
}

}  // namespace LDF_ISA
}  // namespace ldf
