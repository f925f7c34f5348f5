// Integer dot products without VNNI; see dots.h.
//
// vpmaddubsw multiplies unsigned with signed bytes and adds neighbours into 16 bits, where 255 * 127 * 2 does not fit.
// So 8-bit codes are multiplied as |code - 128| times x with the sign of code - 128, and vpmaddwd widens each product
// to 32 bits. Smaller codes are used unmodified, and 16 bits hold the sum of a run of quads: eight for codes below 16,
// four below 32, two below 64.
#pragma once
#include "unpack_avx2.h"

namespace ldf {
namespace LDF_ISA {

struct Dots : OnePanel {
  // Eight sums, the codes and one activation are what 16 registers hold.
  template <class Codes>
  static constexpr int tile = 4;

  template <int rows, class Codes>
  static void begin() {}

  static void end() {}

  template <int rows, class Codes, int part>
  LDF_INLINE static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    constexpr int first = part * Codes::quads;
    if constexpr (run<Codes> == 0) {
      static_assert(Codes::zero == 128, "flipping the sign bit subtracts 128");
      for (int r = 0; r < rows; r++) out[r] = zero_sums();
      signed_quads<rows, Codes, first>(codes, x, out);
    } else {
      runs<rows, Codes, first>(codes, x, out);
      if (Codes::zero == 0) return;
      for (int r = 0; r < rows; r++) out[r] = sub(out[r], splat_sums(Codes::zero * x.sum<Codes, part>(r)));
    }
  }

 private:
  // Returns the number of quads whose products with the largest activations fit into 16 bits.
  static constexpr int run_of(int largest) {
    const int quads = 32767 / (2 * 127 * largest);
    return quads >= 8 ? 8 : quads >= 4 ? 4 : quads >= 2 ? 2 : quads;
  }

  template <class Codes>
  static constexpr int run = run_of(Codes::largest) < Codes::quads ? run_of(Codes::largest) : Codes::quads;

  // In each quad, a is the first eight channels and b the other eight.
  template <int rows, class Codes, int quad>
  LDF_INLINE static void signed_quads(const uint8_t* codes, const Inputs& x, Sums* out) {
    const __m256i zero = _mm256_set1_epi8(-128);
    const __m256i a = _mm256_xor_si256(eight_channels<Codes, quad>(codes), zero);
    const __m256i b = _mm256_xor_si256(eight_channels<Codes, quad>(codes + 32), zero);
    const __m256i a_size = _mm256_abs_epi8(a), b_size = _mm256_abs_epi8(b);
    for (int r = 0; r < rows; r++) {
      const __m256i input = broadcast_four(x.row(r) + 4 * quad);
      add32(&out[r].low, widened(_mm256_maddubs_epi16(a_size, _mm256_sign_epi8(input, a))));
      add32(&out[r].high, widened(_mm256_maddubs_epi16(b_size, _mm256_sign_epi8(input, b))));
    }
    if constexpr ((quad + 1) % Codes::quads) signed_quads<rows, Codes, quad + 1>(codes, x, out);
  }

  // The sums of all runs from `quad` to the end of its part.
  template <int rows, class Codes, int quad>
  LDF_INLINE static void runs(const uint8_t* codes, const Inputs& x, Sums* out) {
    Sums pairs[rows];
    for (int r = 0; r < rows; r++) pairs[r] = zero_sums();
    add_pairs<rows, Codes, quad>(codes, x, pairs);
    for (int r = 0; r < rows; r++) {
      const Sums sums = {widened(pairs[r].low), widened(pairs[r].high)};
      out[r] = quad % Codes::quads ? add(out[r], sums) : sums;
    }
    if constexpr ((quad + run<Codes>) % Codes::quads) runs<rows, Codes, quad + run<Codes>>(codes, x, out);
  }

  // Sums of pairs in 16 bits, of the quads from `quad` to the end of their run.
  template <int rows, class Codes, int quad>
  LDF_INLINE static void add_pairs(const uint8_t* codes, const Inputs& x, Sums* pairs) {
    const __m256i a = eight_channels<Codes, quad>(codes), b = eight_channels<Codes, quad>(codes + 32);
    for (int r = 0; r < rows; r++) {
      const __m256i input = broadcast_four(x.row(r) + 4 * quad);
      add16(&pairs[r].low, _mm256_maddubs_epi16(a, input));
      add16(&pairs[r].high, _mm256_maddubs_epi16(b, input));
    }
    if constexpr ((quad + 1) % run<Codes>) add_pairs<rows, Codes, quad + 1>(codes, x, pairs);
  }

  static __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

  // The empty assembly keeps the compiler from summing in a tree, which would need too many registers.
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
