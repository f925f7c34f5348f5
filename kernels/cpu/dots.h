// What an instruction set does by itself: the integer dot products of one group for a tile of rows and 16 channels.
//
// Each dots_*.h defines, in namespace ldf::LDF_ISA,
//
//   struct Dots {
//     // Rows of a register tile; any number from 1 up to it is asked for. bits: 8, 6 or 4.
//     template <int bits> static constexpr int tile = ...;
//     // Before the groups of one tile: for whole-tile instructions. Often empty.
//     template <int rows, int bits> static void begin();
//     // out[r] = sum over inputs i of (code[i][channel] - zero) * activation[r][i], exact, r < rows.
//     template <int rows, int bits, int zero> static void dot(const uint8_t* codes, const Inputs& x, Sums* out);
//     // After the last tile of a product.
//     static void end();
//   };
//
//   bits  zero       inputs  quads  codes
//   8     128        32      8      [8 quads][16 channels][4 inputs], 0 to 255
//   6     32         16      4      [4 quads][16 channels][4 inputs], 0 to 63; a group is two such calls
//   4     8, 0       32      8      [4 pairs of quads][16 channels][4 inputs], low nibble: the even quad
//
// Codes may lie anywhere; packed weights are aligned to 64 bytes. `dot` reads exactly the rows, inputs and codes named.
// Nothing here rounds: what is done with floats is in products.h, once for all instruction sets.
#pragma once
#include "formats.h"
#include "simd.h"

namespace ldf {
namespace LDF_ISA {

template <int bits>
constexpr int QUADS = bits == 6 ? 4 : 8;

// The activations of a tile's rows that meet the codes of one call of `dot`. Those of a row lie k apart.
struct Inputs {
  const int8_t* codes;  // row r: codes + r * k, -127 to 127
  const int32_t* sums;  // row r: sums + r * (k / 16); one for each 16 inputs
  ptrdiff_t k;

  const int8_t* row(int r) const { return codes + r * k; }

  // The sum of all activations that the call multiplies: what `zero` is multiplied with.
  template <int bits>
  int32_t sum(int r) const {
    const int32_t* of_row = sums + r * (k / 16);
    return bits == 6 ? of_row[0] : of_row[0] + of_row[1];
  }
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
