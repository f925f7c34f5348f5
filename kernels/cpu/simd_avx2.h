// Lanes and Sums as pairs of AVX2 registers; see simd.h.
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace ldf {
namespace LDF_ISA {

constexpr int TILE = 6;  // rows whose sums (one Lanes each) fit into registers with their operands

struct Lanes {
  __m256 low, high;
};

struct Sums {
  __m256i low, high;
};

struct Pairs {
  __m256i low, high;
};

inline Lanes splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void store(float* to, Lanes x) {
  _mm256_storeu_ps(to, x.low);
  _mm256_storeu_ps(to + 8, x.high);
}
inline __m256 load_half_of_lanes(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Lanes load_half(const uint16_t* from) { return {load_half_of_lanes(from), load_half_of_lanes(from + 8)}; }
inline void store_half(uint16_t* to, Lanes x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT));
}

inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }

// Returns all ones in the lanes `first` up to `last`, of the eight lanes from `lane` on.
inline __m256 eight_inside(int lane, int first, int last) {
  const __m256i lanes = _mm256_add_epi32(_mm256_set1_epi32(lane), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lanes);
  return _mm256_castsi256_ps(_mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_set1_epi32(last), lanes)));
}
inline Lanes inside(Lanes x, int first, int last, Lanes other) {
  return {_mm256_blendv_ps(other.low, x.low, eight_inside(0, first, last)),
          _mm256_blendv_ps(other.high, x.high, eight_inside(8, first, last))};
}
inline float sum(Lanes x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float maximum(Lanes x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline Sums zero_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Sums splat_sums(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Sums load_sums(const int32_t* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 8))};
}
inline Sums widen(const int8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
inline Sums widen(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
inline void narrow(int8_t* to, Sums x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.low, x.high), _MM_SHUFFLE(3, 1, 2, 0));
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
inline void narrow(int16_t* to, Sums x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.low, x.high), _MM_SHUFFLE(3, 1, 2, 0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
}
inline __m256i eight_pairs(const int8_t* from) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Pairs load_pairs(const int8_t* from) { return {eight_pairs(from), eight_pairs(from + 16)}; }
inline Pairs load_pairs(const uint8_t* from, const int8_t* table) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), nibble = _mm_set1_epi8(15);
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m128i low = _mm_and_si128(bytes, nibble), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
  return {_mm256_cvtepi8_epi16(_mm_shuffle_epi8(codes, low)), _mm256_cvtepi8_epi16(_mm_shuffle_epi8(codes, high))};
}
inline __m256i add_eight_dots(__m256i c, __m256i x, __m256i pair) {
#if defined(__AVXVNNI__)
  return _mm256_dpwssd_avx_epi32(c, x, pair);
#else
  c = _mm256_add_epi32(c, _mm256_madd_epi16(x, pair));
  asm("" : "+x"(c));  // or the compiler computes all products of a tile before their sums, and runs out of registers
  return c;
#endif
}
inline Sums add_dots(Sums c, Pairs x, const int16_t* pair) {
  int32_t both;
  memcpy(&both, pair, 4);
  const __m256i pairs = _mm256_set1_epi32(both);
  return {add_eight_dots(c.low, x.low, pairs), add_eight_dots(c.high, x.high, pairs)};
}

inline Sums add(Sums a, Sums b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline Sums sub(Sums a, Sums b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
inline Sums max(Sums a, Sums b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
inline int32_t sum(Sums x) {
  const __m256i eight = _mm256_add_epi32(x.low, x.high);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_srli_si128(four, 8));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_si128(two, 4)));
}
inline int32_t maximum(Sums x) {
  const __m256i eight = _mm256_max_epi32(x.low, x.high);
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_srli_si128(four, 8));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_srli_si128(two, 4)));
}

inline Sums low_nibbles(Sums x) {
  const __m256i nibble = _mm256_set1_epi32(15);
  return {_mm256_and_si256(x.low, nibble), _mm256_and_si256(x.high, nibble)};
}
inline Sums high_nibbles(Sums x) { return {_mm256_srli_epi32(x.low, 4), _mm256_srli_epi32(x.high, 4)}; }

inline Lanes to_float(Sums x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
inline Sums to_int(Lanes x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }
inline Sums magnitude(Lanes x) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  return {_mm256_and_si256(_mm256_castps_si256(x.low), mask), _mm256_and_si256(_mm256_castps_si256(x.high), mask)};
}
inline Lanes power_of_two(Sums n) {
  const Sums biased = add(n, splat_sums(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased.low, 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(biased.high, 23))};
}

}  // namespace LDF_ISA
}  // namespace ldf
