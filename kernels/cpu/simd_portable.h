// Lanes and Sums as arrays; see simd.h.
#pragma once
#include <stdint.h>
#include <string.h>

namespace ldf {
namespace LDF_ISA {

constexpr int TILE = 4;  // rows whose sums (one Lanes each) fit into registers with their operands

struct Lanes {
  float v[16];
};

struct Sums {
  int32_t v[16];
};

struct Pairs {
  int16_t v[32];
};

template <class Vector, class Function>
inline Vector each(Function function) {
  Vector out;
  for (int i = 0; i < 16; i++) out.v[i] = function(i);
  return out;
}

// The tree over all lanes; `join` takes two lanes.
template <class Vector, class Join>
inline auto reduce(Vector x, Join join) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) x.v[i] = join(x.v[i], x.v[i + half]);
  }
  return x.v[0];
}

inline float as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

inline uint32_t as_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

inline float from_half(uint16_t half) {
  const uint32_t bits = (half & 0x7fffu) << 13;
  const uint32_t rest = bits < 0x0f800000u ? as_bits(as_float(bits) * 0x1p112f) : bits | 0x7f800000u;
  return as_float(rest | (half & 0x8000u) << 16);
}

inline uint16_t to_half(float x) {
  const uint32_t bits = as_bits(x) & 0x7fffffffu;
  const uint32_t normal = (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13;
  const uint32_t tiny = as_bits(as_float(bits) + 0.5f) - 0x3f000000u;  // its addition rounds to a multiple of 2^-24
  const uint32_t nan = 0x7e00u | (bits >> 13 & 0x3ffu);
  const uint32_t half = bits > 0x7f800000u ? nan : bits >= 0x47800000u ? 0x7c00u : bits < 0x38800000u ? tiny : normal;
  return static_cast<uint16_t>(half | (as_bits(x) >> 16 & 0x8000u));
}

inline Lanes splat(float x) {
  return each<Lanes>([=](int) { return x; });
}
inline Lanes load(const float* from) {
  return each<Lanes>([=](int i) { return from[i]; });
}
inline void store(float* to, Lanes x) { memcpy(to, x.v, 64); }
inline Lanes load_half(const uint16_t* from) {
  return each<Lanes>([=](int i) { return from_half(from[i]); });
}
inline void store_half(uint16_t* to, Lanes x) {
  for (int i = 0; i < 16; i++) to[i] = to_half(x.v[i]);
}

inline Lanes add(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Lanes sub(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Lanes mul(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Lanes div(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return a.v[i] / b.v[i]; });
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each<Lanes>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Lanes max(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes min(const Lanes& a, const Lanes& b) {
  return each<Lanes>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes inside(const Lanes& x, int first, int last, const Lanes& other) {
  return each<Lanes>([&](int i) { return i >= first && i < last ? x.v[i] : other.v[i]; });
}
inline float sum(const Lanes& x) {
  return reduce(x, [](float a, float b) { return a + b; });
}
inline float maximum(const Lanes& x) {
  return reduce(x, [](float a, float b) { return a > b ? a : b; });
}

inline Sums zero_sums() {
  return each<Sums>([](int) { return 0; });
}
inline Sums splat_sums(int32_t x) {
  return each<Sums>([=](int) { return x; });
}
inline Sums load_sums(const int32_t* from) {
  return each<Sums>([=](int i) { return from[i]; });
}
inline Sums widen(const int8_t* from) {
  return each<Sums>([=](int i) { return from[i]; });
}
inline Sums widen(const uint8_t* from) {
  return each<Sums>([=](int i) { return from[i]; });
}
inline void narrow(int8_t* to, const Sums& x) {
  for (int i = 0; i < 16; i++) to[i] = static_cast<int8_t>(x.v[i]);
}
inline void narrow(int16_t* to, const Sums& x) {
  for (int i = 0; i < 16; i++) to[i] = static_cast<int16_t>(x.v[i]);
}
inline Pairs load_pairs(const int8_t* from) {
  Pairs pairs;
  for (int i = 0; i < 32; i++) pairs.v[i] = from[i];
  return pairs;
}
inline Pairs load_pairs(const uint8_t* from, const int8_t* table) {
  Pairs pairs;
  for (int i = 0; i < 16; i++) {
    pairs.v[i] = table[from[i] & 15];
    pairs.v[16 + i] = table[from[i] >> 4];
  }
  return pairs;
}
inline Sums add_dots(const Sums& c, const Pairs& x, const int16_t* pair) {
  return each<Sums>([&](int i) { return c.v[i] + x.v[2 * i] * pair[0] + x.v[2 * i + 1] * pair[1]; });
}

inline Sums add(const Sums& a, const Sums& b) {
  return each<Sums>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Sums sub(const Sums& a, const Sums& b) {
  return each<Sums>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Sums max(const Sums& a, const Sums& b) {
  return each<Sums>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline int32_t sum(const Sums& x) {
  return reduce(x, [](int32_t a, int32_t b) { return a + b; });
}
inline int32_t maximum(const Sums& x) {
  return reduce(x, [](int32_t a, int32_t b) { return a > b ? a : b; });
}

inline Sums low_nibbles(const Sums& x) {
  return each<Sums>([&](int i) { return x.v[i] & 15; });
}
inline Sums high_nibbles(const Sums& x) {
  return each<Sums>([&](int i) { return x.v[i] >> 4; });
}

inline Lanes to_float(const Sums& x) {
  return each<Lanes>([&](int i) { return static_cast<float>(x.v[i]); });
}
inline Sums to_int(const Lanes& x) {  // 1.5 * 2^23 leaves no room for a fraction
  return each<Sums>([&](int i) { return static_cast<int32_t>(as_bits(x.v[i] + 0x1.8p23f) - 0x4b400000u); });
}
inline Sums magnitude(const Lanes& x) {
  return each<Sums>([&](int i) { return static_cast<int32_t>(as_bits(x.v[i]) & 0x7fffffffu); });
}
inline Lanes power_of_two(const Sums& n) {
  return each<Lanes>([&](int i) { return as_float((static_cast<uint32_t>(n.v[i]) + 127u) << 23); });
}

}  // namespace LDF_ISA
}  // namespace ldf
