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
  template <class Codes>
  static constexpr int tile = 8;

  template <int rows, class Codes>
  static void begin() {}

  static void end() {}

  template <int rows, class Codes, int part>
  static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    constexpr int first = part * Codes::quads;
    __m512i weights[Codes::quads];
    unpack<Codes, first>(codes, weights);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const int8_t* row = x.row(r) + 4 * first;
      __m512i sum = _mm512_set1_epi32(-Codes::zero * x.sum<Codes, part>(r));
#pragma GCC unroll 8
      for (int quad = 0; quad < Codes::quads; quad++) sum = add(sum, weights[quad], row + 4 * quad);
      out[r] = {sum};
    }
  }

  // Each quad's codes in a register, from `quad` to the end of its part.
  template <class Codes, int quad>
  static void unpack(const uint8_t* codes, __m512i* quads) {
    __m512i code = field<Codes::low, quad, 0>(codes);
    if constexpr (Codes::high > 0) {
      code = _mm512_or_si512(code, field<Codes::high, quad, Codes::low>(codes + 64 * Codes::low));
    }
    if constexpr (Codes::table != nullptr) code = _mm512_shuffle_epi8(table<Codes>(), code);
    *quads = code;
    if constexpr ((quad + 1) % Codes::quads) unpack<Codes, quad + 1>(codes, quads + 1);
  }

 private:
  // A quad's bits of a plane, moved up to bit `to` of their bytes.
  template <int bits, int quad, int to>
  static __m512i field(const uint8_t* plane) {
    constexpr int from = shift_of<bits>(quad);
    __m512i packed = _mm512_loadu_si512(plane + place_of<bits>(quad));
    if constexpr (bits == 8) return packed;
    if constexpr (from > to) packed = _mm512_srli_epi16(packed, from - to);
    if constexpr (from < to) packed = _mm512_slli_epi16(packed, to - from);
    return _mm512_and_si512(packed, _mm512_set1_epi8(((1 << bits) - 1) << to));
  }

  template <class Codes>
  static __m512i table() {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(Codes::table)));
  }

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
