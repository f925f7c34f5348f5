// What an instruction set does by itself: the integer dot products of one group for a tile of rows and 16 channels.
//
// Each dots_*.h defines, in namespace ldf::LDF_ISA,
//
//   struct Dots {
//     // Rows of a register tile; any number from 1 up to it is asked for.
//     template <class Codes> static constexpr int tile = ...;
//     // Before the groups of one tile: for whole-tile instructions. Often empty.
//     template <int rows, class Codes> static void begin();
//     // out[r] = sum over a part's inputs i of (code[i][channel] - zero) * activation[r][i], exact, r < rows.
//     template <int rows, class Codes, int part> static void dot(const uint8_t* codes, const Inputs& x, Sums* out);
//     // After the last tile of a product.
//     static void end();
//     // Rows of a tile of two panels, 0 if there is none, from how many rows on it pays, and its dots: of the second
//     // panel, `apart` bytes behind the first, out[rows + r]. See OnePanel.
//     template <class Codes> static constexpr int wide_tile = ...;
//     static constexpr int FEWEST_WIDE = ...;
//     template <int rows, class Codes> static void wide_dot(const uint8_t* codes, ptrdiff_t apart, const Inputs& x,
//                                                           Sums* out);
//   };
//
// `codes` and `x` are of a group; a part is the group, or a half of it where each half has a scale. Codes may lie
// anywhere; packed weights are aligned to 64 bytes. `dot` reads no rows, inputs or codes but the group's. Nothing here
// rounds: what is done with floats is in scales.h and products.h, once for all instruction sets.
#pragma once
#include "formats.h"
#include "simd.h"

// By force, or the compiler makes one function for all formats with the same codes, whose sums then lie in memory.
#define LDF_INLINE __attribute__((always_inline))

namespace ldf {
namespace LDF_ISA {

// How the codes of a group are stored (see formats.h): a plane of `low` bits, and one of `high` bits if that is not 0.
template <int low_bits, int high_bits, int zero_point, int part_count = 1>
struct Planes {
  static constexpr int low = low_bits, high = high_bits, zero = zero_point, parts = part_count;
  static constexpr int bytes = 64 * (low + high), quads = 8 / parts;
  static constexpr int largest = (1 << (low + high)) - 1;  // of the codes that are multiplied
  static constexpr const uint8_t* table = nullptr;         // what codes are, by what is stored; null if that itself
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

// Where a quad lies in a plane of so many bits: its 64 bytes, and its lowest bit in each of them.
template <int bits>
constexpr int place_of(int quad) {
  return quad * bits / 8 * 64;
}

template <int bits>
constexpr int shift_of(int quad) {
  return quad * bits % 8;
}

// One code; `at` is 4 * channel + input.
template <class Codes>
inline int code_of(const uint8_t* codes, int quad, int at) {
  int code = codes[place_of<Codes::low>(quad) + at] >> shift_of<Codes::low>(quad) & ((1 << Codes::low) - 1);
  if constexpr (Codes::high > 0) {
    const int byte = codes[64 * Codes::low + place_of<Codes::high>(quad) + at];
    code |= (byte >> shift_of<Codes::high>(quad) & ((1 << Codes::high) - 1)) << Codes::low;
  }
  if constexpr (Codes::table != nullptr) code = Codes::table[code];
  return code;
}

// The activations of a tile's rows that meet the codes of a group. Those of a row lie k apart.
struct Inputs {
  const int8_t* codes;  // row r: codes + r * k, -127 to 127
  const int32_t* sums;  // row r: sums + r * (k / 16); one for each 16 inputs
  ptrdiff_t k;

  const int8_t* row(int r) const { return codes + r * k; }

  // The sum of all activations of a part: what `zero` is multiplied with.
  template <class Codes, int part>
  int32_t sum(int r) const {
    const int32_t* of_row = sums + r * (k / 16);
    return Codes::parts == 2 ? of_row[part] : of_row[0] + of_row[1];
  }
};

// What an instruction set says that has no tiles of two panels.
struct OnePanel {
  template <class Codes>
  static constexpr int wide_tile = 0;
  static constexpr int FEWEST_WIDE = 0;

  template <int rows, class Codes>
  static void wide_dot(const uint8_t* codes, ptrdiff_t apart, const Inputs& x, Sums* out);  // never called
};

}  // namespace LDF_ISA
}  // namespace ldf

#if defined(__AMX_INT8__)
#include "dots_amx.h"
#elif defined(__AVX512VNNI__)
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
