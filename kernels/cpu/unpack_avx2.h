// Codes of a quad as bytes in AVX2 registers, eight channels in each; see dots.h.
#pragma once
#include <immintrin.h>
#include <string.h>

#include "dots.h"

namespace ldf {
namespace LDF_ISA {

// A quad's bits of a plane, moved up to bit `to` of their bytes.
template <int bits, int quad, int to>
inline __m256i field(const uint8_t* plane) {
  constexpr int from = bit_shift<bits>(quad);
  __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane + byte_offset<bits>(quad)));
  if constexpr (bits == 8) return packed;
  if constexpr (from > to) packed = _mm256_srli_epi16(packed, from - to);
  if constexpr (from < to) packed = _mm256_slli_epi16(packed, to - from);
  return _mm256_and_si256(packed, _mm256_set1_epi8(((1 << bits) - 1) << to));
}

// Unpacks the codes of the first eight channels of a quad; pass codes + 32 for the others.
template <class Codes, int quad>
inline __m256i eight_channels(const uint8_t* codes) {
  __m256i code = field<Codes::low, quad, 0>(codes);
  if constexpr (Codes::high > 0) {
    code = _mm256_or_si256(code, field<Codes::high, quad, Codes::low>(codes + 64 * Codes::low));
  }
  if constexpr (Codes::table != nullptr) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(Codes::table));
    code = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), code);
  }
  return code;
}

// Four inputs for each of eight channels.
inline __m256i broadcast_four(const int8_t* x) {
  int32_t bytes;
  memcpy(&bytes, x, 4);
  return _mm256_set1_epi32(bytes);
}

}  // namespace LDF_ISA
}  // namespace ldf
