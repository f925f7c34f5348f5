// Lanes and Sums as AVX-512 registers; see simd.h.
#pragma once
#include <stdint.h>
#include <string.h>

// GCC 12 warns of its own headers' undefined registers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace ldf {
namespace LDF_ISA {

constexpr int TILE = 12;  // rows whose sums (one Lanes each) fit into registers with their operands

struct Lanes {
  __m512 v;
};

struct Sums {
  __m512i v;
};

struct Pairs {
  __m512i v;
};

inline Lanes splat(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline void store(float* to, Lanes x) { _mm512_storeu_ps(to, x.v); }
inline Lanes load_half(const uint16_t* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline void store_half(uint16_t* to, Lanes x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}

inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Lanes inside(Lanes x, int first, int last, Lanes other) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 started = _mm512_cmple_epi32_mask(_mm512_set1_epi32(first), lanes);
  const __mmask16 mask = _mm512_mask_cmpgt_epi32_mask(started, _mm512_set1_epi32(last), lanes);
  return {_mm512_mask_mov_ps(other.v, mask, x.v)};
}
inline __m256 low_half(__m512 x) { return _mm512_castps512_ps256(x); }
inline __m256 high_half(__m512 x) { return _mm512_extractf32x8_ps(x, 1); }
inline float sum(Lanes x) {
  const __m256 eight = _mm256_add_ps(low_half(x.v), high_half(x.v));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float maximum(Lanes x) {
  const __m256 eight = _mm256_max_ps(low_half(x.v), high_half(x.v));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline Sums zero_sums() { return {_mm512_setzero_si512()}; }
inline Sums splat_sums(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Sums load_sums(const int32_t* from) { return {_mm512_loadu_si512(from)}; }
inline Sums widen(const int8_t* from) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
inline Sums widen(const uint8_t* from) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
inline void narrow(int8_t* to, Sums x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x.v));
}
inline void narrow(int16_t* to, Sums x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x.v));
}
inline Pairs load_pairs(const int8_t* from) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline Pairs load_pairs(const uint8_t* from, const int8_t* table) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m256i codes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
  return {_mm512_cvtepi8_epi16(_mm256_shuffle_epi8(codes, _mm256_and_si256(both, _mm256_set1_epi8(15))))};
}
inline Sums add_dots(Sums c, Pairs x, const int16_t* pair) {
  int32_t both;
  memcpy(&both, pair, 4);
  return {_mm512_dpwssd_epi32(c.v, x.v, _mm512_set1_epi32(both))};
}

inline Sums add(Sums a, Sums b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Sums sub(Sums a, Sums b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Sums max(Sums a, Sums b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline int32_t sum(Sums x) { return _mm512_reduce_add_epi32(x.v); }
inline int32_t maximum(Sums x) { return _mm512_reduce_max_epi32(x.v); }

inline Sums low_nibbles(Sums x) { return {_mm512_and_si512(x.v, _mm512_set1_epi32(15))}; }
inline Sums high_nibbles(Sums x) { return {_mm512_srli_epi32(x.v, 4)}; }

inline Lanes to_float(Sums x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline Sums to_int(Lanes x) { return {_mm512_cvtps_epi32(x.v)}; }
inline Sums magnitude(Lanes x) {
  return {_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff))};
}
inline Lanes power_of_two(Sums n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(add(n, splat_sums(127)).v, 23))};
}

}  // namespace LDF_ISA
}  // namespace ldf
