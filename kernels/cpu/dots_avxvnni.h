// Integer dot products with AVX-VNNI: one instruction multiplies four inputs of a row with eight channels; see dots.h.
//
// vpdpbusd takes unsigned codes and signed activations. The start value of a sum subtracts the zero point.
#pragma once
#include "unpack_avx2.h"

namespace ldf {
namespace LDF_ISA {

struct Dots : OnePanel {
  // Twelve sums, two registers of codes and one of activations: six rows leave one register of 16.
  template <class Codes>
  static constexpr int tile = 6;

  template <int rows, class Codes>
  static void begin() {}

  static void end() {}

  template <int rows, class Codes, int part>
  static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    __m256i low[rows], high[rows];
    for (int r = 0; r < rows; r++) low[r] = high[r] = _mm256_set1_epi32(-Codes::zero * x.sum<Codes, part>(r));
    add<rows, Codes, part * Codes::quads>(codes, x, low, high);
    for (int r = 0; r < rows; r++) out[r] = {low[r], high[r]};
  }

 private:
  // The products of four inputs with the channels' codes, for all quads from `quad` to the end of its part.
  template <int rows, class Codes, int quad>
  LDF_INLINE static void add(const uint8_t* codes, const Inputs& x, __m256i* low, __m256i* high) {
    const __m256i first = eight_channels<Codes, quad>(codes), second = eight_channels<Codes, quad>(codes + 32);
    for (int r = 0; r < rows; r++) {
      const __m256i input = broadcast_four(x.row(r) + 4 * quad);
      low[r] = _mm256_dpbusd_avx_epi32(low[r], first, input);
      high[r] = _mm256_dpbusd_avx_epi32(high[r], second, input);
    }
    if constexpr ((quad + 1) % Codes::quads) add<rows, Codes, quad + 1>(codes, x, low, high);
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
