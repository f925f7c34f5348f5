// Conversion of a group's integer products to floats, by format; products.h has the formulas.
//
// Scales are constructed from a panel at a group, and scale the weights of its channels:
//
//   dots<rows, panels, Codes>(codes, distance, x, out)
//                                      the integer products of a tile's rows, as floats
//   add(dot, x_scale, total)           a row's product, scaled and added to its total
//   of(half)                           the factor of a code of inputs 0-15 or 16-31, minus its zero point
//   BYTES, SUPERS                      size of the scales: bytes per group, float16 numbers per eight groups
//
// A shift is added to every weight of a group, in formats that have one: `at(panel, group, half)`. `add_to` sums the
// contribution of a panel's shifts to rows separately, since the registers cannot hold it next to the products.
#pragma once
#include "dots.h"

namespace ldf {
namespace LDF_ISA {

constexpr int GROUPS = SUPER / GROUP;  // groups that share supers

// Size of a panel: bytes of codes and scales per group, supers (numbers) per eight groups; or the totals.
struct Sizes {
  int codes, scales, supers;

  constexpr Sizes of(int groups) const { return {groups * codes, groups * scales, groups * supers / GROUPS}; }
};

// Sixteen channels of a matrix, starting at a group.
struct Panel {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint16_t* supers;

  // Returns the same groups of the next panel; `distance` is the size of a panel.
  Panel next_panel(const Sizes& distance) const {
    return {codes + distance.codes, scales + distance.scales, supers + distance.supers};
  }
};

// One scale for each group.
struct Whole {
  Lanes scale;

  template <int rows, int panels, class Codes>
  LDF_INLINE void dots(const uint8_t* codes, ptrdiff_t distance, const Inputs& x, Lanes* out) const {
    Sums dot[panels * rows];
    if constexpr (panels == 2) {
      Dots::wide_dot<rows, Codes>(codes, distance, x, dot);
    } else {
      Dots::dot<rows, Codes, 0>(codes, x, dot);
    }
#pragma GCC unroll 16
    for (int i = 0; i < panels * rows; i++) out[i] = to_float(dot[i]);
  }

  Lanes add(Lanes dot, Lanes x_scale, Lanes total) const { return fma(dot, mul(scale, x_scale), total); }

  Lanes of(int) const { return scale; }
};

struct HalfFloats : Whole {  // Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL
  static constexpr int BYTES = 2 * PANEL, SUPERS = 0;

  explicit HalfFloats(const Panel& at) : Whole{load_half(reinterpret_cast<const uint16_t*>(at.scales))} {}
};

struct Exponents : Whole {  // MXFP4: 2^(e - 128), of which e = 0 and 1 are subnormal
  static constexpr int BYTES = PANEL, SUPERS = 0;

  explicit Exponents(const Panel& at) : Whole{mul(max(normal(at), splat(0x1p-127f)), splat(0.5f))} {}

 private:
  static Lanes normal(const Panel& at) { return power_of_two(sub(widen(at.scales), splat_sums(127))); }
};

template <class Number>
struct Integers : Whole {  // Q4_K, Q5_K: uint8_t; IQ4_XS: int8_t
  static constexpr int BYTES = PANEL, SUPERS = PANEL;

  explicit Integers(const Panel& at)
      : Whole{mul(load_half(at.supers), to_float(widen(reinterpret_cast<const Number*>(at.scales))))} {}
};

// One scale, a whole number, for each half of a group.
struct Halves {
  static constexpr int BYTES = 2 * PANEL, SUPERS = PANEL;
  Lanes super, first, second;

  template <int rows, int panels, class Codes>
  LDF_INLINE void dots(const uint8_t* codes, ptrdiff_t, const Inputs& x, Lanes* out) const {
    static_assert(panels == 1, "two panels' scales are more than registers hold");
    Sums dot0[rows], dot1[rows];
    Dots::dot<rows, Codes, 0>(codes, x, dot0);
    Dots::dot<rows, Codes, 1>(codes, x, dot1);
    // Whole numbers, so nothing is rounded; in floats because some processors are slow at multiplying 32-bit integers.
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) out[r] = fma(to_float(dot0[r]), first, mul(to_float(dot1[r]), second));
  }

  Lanes add(Lanes dot, Lanes x_scale, Lanes total) const { return fma(dot, mul(super, x_scale), total); }

  Lanes of(int half) const { return mul(super, half ? second : first); }
};

struct SignedHalves : Halves {  // Q6_K, Q3_K
  explicit SignedHalves(const Panel& at) : Halves{load_half(at.supers), half(at.scales), half(at.scales + PANEL)} {}

 private:
  static Lanes half(const uint8_t* scales) { return to_float(widen(reinterpret_cast<const int8_t*>(scales))); }
};

struct NibbleHalves : Halves {  // Q2_K
  explicit NibbleHalves(const Panel& at) : Halves{load_half(at.supers), half(at.scales), half(at.scales + PANEL)} {}

 private:
  static Lanes half(const uint8_t* scales) { return to_float(low_nibbles(widen(scales))); }
};

struct NoShift {
  static constexpr int BYTES = 0, SUPERS = 0;

  static Lanes at(const Panel&, int, int) { return splat(0.0f); }
};

// One shift for each group.
template <class Shift>
struct ByGroup {
  template <int rows, int panels>
  static void add_to(Lanes* shifted, const Panel& panel, const Sizes& distance, const Inputs& x, const float*,
                     const float* x_totals) {
    const int groups = static_cast<int>(x.k / GROUP);
    for (int group = 0; group < groups; group++) {
      const Lanes shift = Shift::at(panel, group, 0);
      const Lanes other = panels == 2 ? Shift::at(panel.next_panel(distance), group, 0) : shift;
#pragma GCC unroll 16
      for (int r = 0; r < rows; r++) {
        const Lanes x_total = splat(x_totals[r * groups + group]);
        shifted[r] = fma(x_total, shift, shifted[r]);
        if constexpr (panels == 2) shifted[rows + r] = fma(x_total, other, shifted[rows + r]);
      }
    }
  }
};

struct Offsets : ByGroup<Offsets> {  // Q4_1, Q5_1
  static constexpr int BYTES = 0, SUPERS = GROUPS * PANEL;

  static Lanes at(const Panel& panel, int group, int) { return load_half(panel.supers + group * PANEL); }
};

// Returns the shift -dmin * minimum; dmin follows the scales' supers.
inline Lanes minimum_shift(const Panel& panel, int group, Sums minimum) {
  const Lanes dmin = load_half(panel.supers + (group / GROUPS * 2 + 1) * PANEL);
  return mul(mul(splat(-1.0f), dmin), to_float(minimum));
}

struct Minimums : ByGroup<Minimums> {  // Q4_K, Q5_K
  static constexpr int BYTES = PANEL, SUPERS = PANEL;

  static Lanes at(const Panel& panel, int group, int) {
    return minimum_shift(panel, group, widen(panel.scales + (2 * group + 1) * PANEL));
  }
};

struct HalfMinimums {  // Q2_K, whose bytes hold both scale and minimum
  static constexpr int BYTES = 0, SUPERS = PANEL;

  static Lanes at(const Panel& panel, int group, int half) {
    return minimum_shift(panel, group, high_nibbles(widen(panel.scales + (2 * group + half) * PANEL)));
  }

  template <int rows, int panels>
  static void add_to(Lanes* shifted, const Panel& panel, const Sizes&, const Inputs& x, const float* x_scales,
                     const float*) {
    static_assert(panels == 1, "see Halves");
    const int groups = static_cast<int>(x.k / GROUP);
    for (int first = 0; first < groups; first += GROUPS) {
      float totals[rows][2 * GROUPS];
      for (int r = 0; r < rows; r++) {
        const int32_t* sums = x.sums + r * 2 * groups + 2 * first;
        for (int i = 0; i < 2 * GROUPS; i++) {
          totals[r][i] = static_cast<float>(sums[i]) * x_scales[r * groups + first + i / 2];
        }
      }
      for (int i = 0; i < 2 * GROUPS; i++) {
        const Lanes shift = at(panel, first + i / 2, i % 2);
        for (int r = 0; r < rows; r++) shifted[r] = fma(splat(totals[r][i]), shift, shifted[r]);
      }
    }
  }
};

template <class CodesType, class ScalesType, class ShiftType = NoShift>
struct Format {
  using Codes = CodesType;
  using Scales = ScalesType;
  using Shift = ShiftType;
  static constexpr Sizes sizes = {Codes::bytes, Scales::BYTES + Shift::BYTES, Scales::SUPERS + Shift::SUPERS};
  static constexpr bool shifts = Shift::BYTES + Shift::SUPERS > 0;
};

// Calls use(format) with the format of a kind.
template <class Use>
inline auto with_format(int32_t kind, Use use) {
  switch (kind) {
    case Q4_0: return use(Format<Planes<4, 0, 8>, HalfFloats>());
    case Q5_0: return use(Format<Planes<4, 1, 16>, HalfFloats>());
    case IQ4_NL: return use(Format<NonLinear, HalfFloats>());
    case MXFP4: return use(Format<MicroFloats, Exponents>());
    case Q4_1: return use(Format<Planes<4, 0, 0>, HalfFloats, Offsets>());
    case Q5_1: return use(Format<Planes<4, 1, 0>, HalfFloats, Offsets>());
    case Q4_K: return use(Format<Planes<4, 0, 0>, Integers<uint8_t>, Minimums>());
    case Q5_K: return use(Format<Planes<4, 1, 0>, Integers<uint8_t>, Minimums>());
    case IQ4_XS: return use(Format<NonLinear, Integers<int8_t>>());
    case Q6_K: return use(Format<SixBits, SignedHalves>());
    case Q3_K: return use(Format<Planes<2, 1, 4, 2>, SignedHalves>());
    case Q2_K: return use(Format<Planes<2, 0, 0, 2>, NibbleHalves, HalfMinimums>());
    default: return use(Format<EightBits, HalfFloats>());  // Q8_0
  }
}

inline Sizes sizes_of(int32_t kind) {
  return with_format(kind, [](auto format) { return decltype(format)::sizes; });
}

// Returns a panel at its first group.
inline Panel panel_of(const Matrix& weights, size_t panel, const Sizes& sizes) {
  const size_t group = panel * (weights.k / GROUP);
  return {weights.codes + group * sizes.codes, weights.scales + group * sizes.scales,
          weights.supers + group * sizes.supers / GROUPS};
}

}  // namespace LDF_ISA
}  // namespace ldf
