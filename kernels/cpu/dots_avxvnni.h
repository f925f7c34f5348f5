// Integer dot products with AVX-VNNI: one instruction multiplies four inputs of a row with eight channels; see dots.h.
//
// vpdpbusd takes unsigned codes and signed activations. The zero point is taken off by what a sum starts from.
#pragma once
#include <immintrin.h>
#include <string.h>

#include "dots.h"

namespace ldf {
namespace LDF_ISA {

struct Dots {
  // Twelve sums, two registers of codes and one of activations: six rows leave one register of 16.
  template <int bits>
  static constexpr int tile = 6;

  template <int rows, int bits>
  static void begin() {}

  static void end() {}

  template <int rows, int bits, int zero>
  static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    __m256i low[rows], high[rows];
    for (int r = 0; r < rows; r++) low[r] = high[r] = _mm256_set1_epi32(-zero * x.sum<bits>(r));
#pragma GCC unroll 1
    for (int quad = 0; quad < QUADS<bits>; quad += bits == 4 ? 2 : 1) {
      const uint8_t* place = codes + 64 * (bits == 4 ? quad / 2 : quad);
      const __m256i first = load(place), second = load(place + 32);
      if (bits != 4) add<rows>(first, second, x, 4 * quad, low, high);
      if (bits == 4) add<rows>(low_nibbles(first), low_nibbles(second), x, 4 * quad, low, high);
      if (bits == 4) add<rows>(high_nibbles(first), high_nibbles(second), x, 4 * quad + 4, low, high);
    }
    for (int r = 0; r < rows; r++) out[r] = {low[r], high[r]};
  }

 private:
  static __m256i load(const uint8_t* codes) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)); }

  static __m256i low_nibbles(__m256i codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(15)); }

  static __m256i high_nibbles(__m256i codes) { return low_nibbles(_mm256_srli_epi16(codes, 4)); }

  static __m256i four(const int8_t* x) {
    int32_t bytes;
    memcpy(&bytes, x, 4);
    return _mm256_set1_epi32(bytes);
  }

  // The products of four inputs with the channels' codes.
  template <int rows>
  static void add(__m256i first, __m256i second, const Inputs& x, int input, __m256i* low, __m256i* high) {
    for (int r = 0; r < rows; r++) {
      const __m256i here = four(x.row(r) + input);
      low[r] = _mm256_dpbusd_avx_epi32(low[r], first, here);
      high[r] = _mm256_dpbusd_avx_epi32(high[r], second, here);
    }
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
