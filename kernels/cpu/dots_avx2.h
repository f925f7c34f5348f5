// Integer dot products without VNNI; see dots.h.
//
// vpmaddubsw multiplies unsigned with signed bytes and adds neighbours into 16 bits, where 255 * 127 * 2 does not fit.
// So 8-bit codes go in as |code - 128| times x with the sign of code - 128, and vpmaddwd makes 32 bits of each product.
// Codes of 6 bits fit as they are, two quads in a sum; codes of 4 bits fit eight times, which is a whole group.
#pragma once
#include <immintrin.h>
#include <string.h>

#include "dots.h"

namespace ldf {
namespace LDF_ISA {

// By force, or the compiler makes one function for all formats of four bits, whose sums then lie in memory.
#define LDF_INLINE __attribute__((always_inline))

struct Dots {
  // Eight sums, the codes and one activation are what 16 registers hold.
  template <int bits>
  static constexpr int tile = 4;

  template <int rows, int bits>
  static void begin() {}

  static void end() {}

  template <int rows, int bits, int zero>
  LDF_INLINE static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    if constexpr (bits == 8) return eight_bits<rows>(codes, x, out);
    if constexpr (bits == 6) six_bits<rows>(codes, x, out);
    if constexpr (bits == 4) four_bits<rows>(codes, x, out);
    if (zero == 0) return;
    for (int r = 0; r < rows; r++) out[r] = sub(out[r], splat_sums(zero * x.sum<bits>(r)));
  }

 private:
  // The first eight channels of a quad (a, below); `high` has the others (b).
  static __m256i low(const uint8_t* quad) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quad)); }

  static __m256i high(const uint8_t* quad) { return low(quad + 32); }

  template <int rows>
  static void eight_bits(const uint8_t* codes, const Inputs& x, Sums* out) {
    const __m256i zero = _mm256_set1_epi8(-128);
    for (int r = 0; r < rows; r++) out[r] = zero_sums();
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; quad++, codes += 64) {
      const __m256i a = _mm256_xor_si256(low(codes), zero), b = _mm256_xor_si256(high(codes), zero);
      const __m256i a_size = _mm256_abs_epi8(a), b_size = _mm256_abs_epi8(b);
      for (int r = 0; r < rows; r++) {
        const __m256i here = four(x.row(r) + 4 * quad);
        add32(&out[r].low, widened(_mm256_maddubs_epi16(a_size, _mm256_sign_epi8(here, a))));
        add32(&out[r].high, widened(_mm256_maddubs_epi16(b_size, _mm256_sign_epi8(here, b))));
      }
    }
  }

  template <int rows>
  static void six_bits(const uint8_t* codes, const Inputs& x, Sums* out) {
    for (int r = 0; r < rows; r++) {
      const __m256i x0 = four(x.row(r)), x1 = four(x.row(r) + 4), x2 = four(x.row(r) + 8), x3 = four(x.row(r) + 12);
      const __m256i a01 = two_quads(low(codes), x0, low(codes + 64), x1);
      const __m256i a23 = two_quads(low(codes + 128), x2, low(codes + 192), x3);
      const __m256i b01 = two_quads(high(codes), x0, high(codes + 64), x1);
      const __m256i b23 = two_quads(high(codes + 128), x2, high(codes + 192), x3);
      out[r] = {_mm256_add_epi32(a01, a23), _mm256_add_epi32(b01, b23)};
    }
  }

  template <int rows>
  LDF_INLINE static void four_bits(const uint8_t* codes, const Inputs& x, Sums* out) {
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int r = 0; r < rows; r++) out[r] = zero_sums();
#pragma GCC unroll 1
    for (int quad = 0; quad < 8; quad += 2, codes += 64) {
      const __m256i a = low(codes), b = high(codes);
      one_quad<rows>(_mm256_and_si256(a, nibble), _mm256_and_si256(b, nibble), x, quad, out);
      const __m256i a_odd = _mm256_srli_epi16(a, 4), b_odd = _mm256_srli_epi16(b, 4);
      one_quad<rows>(_mm256_and_si256(a_odd, nibble), _mm256_and_si256(b_odd, nibble), x, quad + 1, out);
    }
    for (int r = 0; r < rows; r++) out[r] = {widened(out[r].low), widened(out[r].high)};
  }

  template <int rows>
  static void one_quad(__m256i a, __m256i b, const Inputs& x, int quad, Sums* out) {
    for (int r = 0; r < rows; r++) {
      const __m256i here = four(x.row(r) + 4 * quad);
      add16(&out[r].low, _mm256_maddubs_epi16(a, here));
      add16(&out[r].high, _mm256_maddubs_epi16(b, here));
    }
  }

  static __m256i two_quads(__m256i codes0, __m256i x0, __m256i codes1, __m256i x1) {
    return widened(_mm256_add_epi16(_mm256_maddubs_epi16(codes0, x0), _mm256_maddubs_epi16(codes1, x1)));
  }

  // Four inputs for each of eight channels.
  static __m256i four(const int8_t* x) {
    int32_t bytes;
    memcpy(&bytes, x, 4);
    return _mm256_set1_epi32(bytes);
  }

  static __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

  // The empty assembly keeps the compiler from making a tree of a sum, whose branches the registers cannot hold.
  static void add32(__m256i* sum, __m256i x) {
    *sum = _mm256_add_epi32(*sum, x);
    asm("" : "+x"(*sum));
  }

  static void add16(__m256i* sum, __m256i x) {
    *sum = _mm256_add_epi16(*sum, x);
    asm("" : "+x"(*sum));
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
