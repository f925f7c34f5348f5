// Integer dot products of one group of 32 inputs for a tile of rows (tokens) and a panel of 16 channels, which each
// instruction set implements.
//
// Each dots_*.h defines, in namespace ldf::LDF_ISA,
//
//   struct Dots {
//     // Rows of a register tile; callers request 1 up to this number.
//     template <class Codes> static constexpr int tile = ...;
//     // Called before the groups of a tile, for tile instructions. Often empty.
//     template <int rows, class Codes> static void begin();
//     // out[r] = sum over a part's inputs i of (code[i][channel] - zero) * activation[r][i], exact, r < rows.
//     template <int rows, class Codes, int part> static void dot(const uint8_t* codes, const Inputs& x, Sums* out);
//     // Called after the last tile of a product.
//     static void end();
//     // Rows of a tile of two panels (0: none), the fewest rows for which it pays, and its dot products: out[rows + r]
//     // for the second panel, `distance` bytes after the first. See OnePanel.
//     template <class Codes> static constexpr int wide_tile = ...;
//     static constexpr int MIN_WIDE_ROWS = ...;
//     template <int rows, class Codes> static void wide_dot(const uint8_t* codes, ptrdiff_t distance, const Inputs& x,
//                                                           Sums* out);
//   };
//
// `codes` and `x` belong to a group; a part is the group, or half of it if each half has a scale. Codes need no
// alignment; packed weights are aligned to 64 bytes. `dot` reads only the group's rows, inputs and codes. Nothing here
// rounds: float arithmetic is in scales.h and products.h, once for all instruction sets.
#pragma once
#include "formats.h"
#include "simd.h"

// Forced, since otherwise the compiler shares one function between formats and keeps its sums in memory.
#define LDF_INLINE __attribute__((always_inline))

namespace ldf {
namespace LDF_ISA {

// How the codes of a group are stored (see formats.h): a plane of `low` bits, and a plane of `high` bits if not 0.
template <int low_bits, int high_bits, int zero_point, int part_count = 1>
struct Planes {
  static constexpr int low = low_bits, high = high_bits, zero = zero_point, parts = part_count;
  static constexpr int bytes = 64 * (low + high), quads = 8 / parts;
  static constexpr int largest = (1 << (low + high)) - 1;  // largest code that is multiplied
  static constexpr const uint8_t* table = nullptr;         // codes by stored value; null if they are equal
};

struct EightBits : Planes<8, 0, 128> {};

struct SixBits : Planes<8, 0, 32, 2> {
  static constexpr int largest = 63;
};

struct NonLinear : Planes<4, 0, 128> {
  static constexpr int largest = 241;
  static constexpr const uint8_t* table = IQ4_CODES;
};

struct MicroFloats : Planes<4, 0, 12> {
  static constexpr int largest = 24;
  static constexpr const uint8_t* table = E2M1_CODES;
};

// Position of a quad in a plane of `bits` bits: the offset of its 64 bytes, and its lowest bit in each.
template <int bits>
constexpr int byte_offset(int quad) {
  return quad * bits / 8 * 64;
}

template <int bits>
constexpr int bit_shift(int quad) {
  return quad * bits % 8;
}

// Returns one code; `at` is 4 * channel + input.
template <class Codes>
inline int code_of(const uint8_t* codes, int quad, int at) {
  int code = codes[byte_offset<Codes::low>(quad) + at] >> bit_shift<Codes::low>(quad) & ((1 << Codes::low) - 1);
  if constexpr (Codes::high > 0) {
    const int byte = codes[64 * Codes::low + byte_offset<Codes::high>(quad) + at];
    code |= (byte >> bit_shift<Codes::high>(quad) & ((1 << Codes::high) - 1)) << Codes::low;
  }
  if constexpr (Codes::table != nullptr) code = Codes::table[code];
  return code;
}

// Activations of a tile's rows for one group; the codes of consecutive rows are k bytes apart.
struct Inputs {
  const int8_t* codes;  // row r: codes + r * k, -127 to 127
  const int32_t* sums;  // row r: sums + r * (k / 16); one for each 16 inputs
  ptrdiff_t k;

  const int8_t* row(int r) const { return codes + r * k; }

  // Returns the sum of all activations of a part, the factor of `zero`.
  template <class Codes, int part>
  int32_t sum(int r) const {
    const int32_t* of_row = sums + r * (k / 16);
    return Codes::parts == 2 ? of_row[part] : of_row[0] + of_row[1];
  }
};

// Base of instruction sets without tiles of two panels.
struct OnePanel {
  template <class Codes>
  static constexpr int wide_tile = 0;
  static constexpr int MIN_WIDE_ROWS = 0;

  template <int rows, class Codes>
  static void wide_dot(const uint8_t* codes, ptrdiff_t distance, const Inputs& x, Sums* out);  // never called
};

}  // namespace LDF_ISA
}  // namespace ldf

#if defined(__AVX512VNNI__)
#include "dots_avx512vnni.h"
#elif defined(__AVXVNNI__)
#include "dots_avxvnni.h"
#elif defined(__AVX2__)
#include "dots_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "dots_neon.h"
#else
#include "dots_portable.h"
#endif
