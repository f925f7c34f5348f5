// Integer dot products with AVX512-VNNI: one instruction multiplies four inputs of a row with 16 channels; see dots.h.
//
// vpdpbusd takes unsigned codes and signed activations. The zero point is taken off by what a sum starts from. Codes of
// a group fill eight registers, which all rows of a tile meet.
#pragma once
#include <immintrin.h>

#include "dots.h"

namespace ldf {
namespace LDF_ISA {

struct VectorDots {
  // Totals, sums and codes of eight rows take 24 of the 32 registers. A second tile costs another look at codes that
  // are in the nearest cache by then: 8 loads for 64 products.
  template <int bits>
  static constexpr int tile = 8;

  template <int rows, int bits>
  static void begin() {}

  static void end() {}

  template <int rows, int bits, int zero>
  static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    __m512i weights[QUADS<bits>];
    unpack<bits>(codes, weights);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const int8_t* row = x.row(r);
      __m512i sum = _mm512_set1_epi32(-zero * x.sum<bits>(r));
#pragma GCC unroll 8
      for (int quad = 0; quad < QUADS<bits>; quad++) sum = add(sum, weights[quad], row + 4 * quad);
      out[r] = {sum};
    }
  }

  // Each quad's codes in a register.
  template <int bits>
  static void unpack(const uint8_t* codes, __m512i* quads) {
    const __m512i nibble = _mm512_set1_epi8(15);
    for (int quad = 0; quad < QUADS<bits>; quad += bits == 4 ? 2 : 1) {
      const __m512i packed = _mm512_loadu_si512(codes + 64 * (bits == 4 ? quad / 2 : quad));
      quads[quad] = bits == 4 ? _mm512_and_si512(packed, nibble) : packed;
      if (bits == 4) quads[quad + 1] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
    }
  }

 private:
  // sum + the products of four inputs with the channels' codes. GCC does not fold the broadcast of _mm512_dpbusd_epi32
  // into the instruction, which makes two of each.
  static __m512i add(__m512i sum, __m512i codes, const int8_t* x) {
    typedef int32_t Four __attribute__((may_alias, aligned(1)));
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*reinterpret_cast<const Four*>(x)));
    return sum;
  }
};

#if !defined(__AMX_INT8__)
using Dots = VectorDots;
#endif

}  // namespace LDF_ISA
}  // namespace ldf
