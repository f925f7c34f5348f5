// Lanes and Sums as fours of NEON registers; see simd.h.
#pragma once
#include <arm_neon.h>
#include <stdint.h>

namespace ldf {
namespace LDF_ISA {

constexpr int TILE = 6;  // rows whose sums (one Lanes each) fit into registers with their operands

struct Lanes {
  float32x4_t v[4];
};

struct Sums {
  int32x4_t v[4];
};

struct Pairs {
  int16x4_t v[2][4];  // the first of each pair, the second
};

template <class Vector, class Function>
inline Vector each(Function function) {
  return {{function(0), function(1), function(2), function(3)}};
}

inline Lanes splat(float x) {
  return each<Lanes>([=](int) { return vdupq_n_f32(x); });
}
inline Lanes load(const float* from) {
  return each<Lanes>([=](int i) { return vld1q_f32(from + 4 * i); });
}
inline void store(float* to, Lanes x) {
  for (int i = 0; i < 4; i++) vst1q_f32(to + 4 * i, x.v[i]);
}
inline Lanes load_half(const uint16_t* from) {
  return each<Lanes>([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + 4 * i))); });
}
inline void store_half(uint16_t* to, Lanes x) {
  for (int i = 0; i < 4; i++) vst1_u16(to + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}

inline Lanes add(Lanes a, Lanes b) {
  return each<Lanes>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline Lanes sub(Lanes a, Lanes b) {
  return each<Lanes>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline Lanes mul(Lanes a, Lanes b) {
  return each<Lanes>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline Lanes div(Lanes a, Lanes b) {
  return each<Lanes>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return each<Lanes>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// Not vmaxq_f32, which has its own rule for NaN.
inline float32x4_t four_max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Lanes max(Lanes a, Lanes b) {
  return each<Lanes>([&](int i) { return four_max(a.v[i], b.v[i]); });
}
inline Lanes min(Lanes a, Lanes b) {
  return each<Lanes>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline Lanes inside(Lanes x, int first, int last, Lanes other) {
  const int32_t counted[4] = {0, 1, 2, 3};
  return each<Lanes>([&](int i) {
    const int32x4_t lanes = vaddq_s32(vld1q_s32(counted), vdupq_n_s32(4 * i));
    const uint32x4_t started = vcleq_s32(vdupq_n_s32(first), lanes);
    return vbslq_f32(vandq_u32(started, vcgtq_s32(vdupq_n_s32(last), lanes)), x.v[i], other.v[i]);
  });
}
inline float sum(Lanes x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  const float32x4_t two = vaddq_f32(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(two, 0) + vgetq_lane_f32(two, 1);
}
inline float maximum(Lanes x) {
  const float32x4_t four = four_max(four_max(x.v[0], x.v[2]), four_max(x.v[1], x.v[3]));
  const float32x4_t two = four_max(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(four_max(two, vdupq_laneq_f32(two, 1)), 0);
}

inline Sums zero_sums() {
  return each<Sums>([](int) { return vdupq_n_s32(0); });
}
inline Sums splat_sums(int32_t x) {
  return each<Sums>([=](int) { return vdupq_n_s32(x); });
}
inline Sums load_sums(const int32_t* from) {
  return each<Sums>([=](int i) { return vld1q_s32(from + 4 * i); });
}
inline Sums widen(const int8_t* from) {
  const int8x16_t bytes = vld1q_s8(from);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
           vmovl_s16(vget_high_s16(high))}};
}
inline Sums widen(const uint8_t* from) {
  const uint8x16_t bytes = vld1q_u8(from);
  const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
  const int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(bytes)));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
           vmovl_s16(vget_high_s16(high))}};
}
inline void narrow(int8_t* to, Sums x) {
  const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
  vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
inline void narrow(int16_t* to, Sums x) {
  for (int i = 0; i < 4; i++) vst1_s16(to + 4 * i, vmovn_s32(x.v[i]));
}
inline Pairs widen_pairs(int8x16_t firsts, int8x16_t seconds) {
  Pairs pairs;
  const int8x16_t halves[2] = {firsts, seconds};
  for (int half = 0; half < 2; half++) {
    const int16x8_t low = vmovl_s8(vget_low_s8(halves[half])), high = vmovl_s8(vget_high_s8(halves[half]));
    const int16x4_t four[4] = {vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)};
    for (int i = 0; i < 4; i++) pairs.v[half][i] = four[i];
  }
  return pairs;
}
inline Pairs load_pairs(const int8_t* from) {
  const int8x16x2_t halves = vld2q_s8(from);
  return widen_pairs(halves.val[0], halves.val[1]);
}
inline Pairs load_pairs(const uint8_t* from, const int8_t* table) {
  const uint8x16_t bytes = vld1q_u8(from);
  const int8x16_t codes = vld1q_s8(table);
  const int8x16_t low = vqtbl1q_s8(codes, vandq_u8(bytes, vdupq_n_u8(15)));
  const int8x16_t high = vqtbl1q_s8(codes, vshrq_n_u8(bytes, 4));
  return widen_pairs(vuzp1q_s8(low, high), vuzp2q_s8(low, high));
}
inline Sums add_dots(Sums c, Pairs x, const int16_t* pair) {
  return each<Sums>([&](int i) { return vmlal_n_s16(vmlal_n_s16(c.v[i], x.v[0][i], pair[0]), x.v[1][i], pair[1]); });
}

inline Sums add(Sums a, Sums b) {
  return each<Sums>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
inline Sums sub(Sums a, Sums b) {
  return each<Sums>([&](int i) { return vsubq_s32(a.v[i], b.v[i]); });
}
inline Sums max(Sums a, Sums b) {
  return each<Sums>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
}
inline int32_t sum(Sums x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[2]), vaddq_s32(x.v[1], x.v[3])));
}
inline int32_t maximum(Sums x) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[2]), vmaxq_s32(x.v[1], x.v[3])));
}

inline Sums low_nibbles(Sums x) {
  return each<Sums>([&](int i) { return vandq_s32(x.v[i], vdupq_n_s32(15)); });
}
inline Sums high_nibbles(Sums x) {
  return each<Sums>([&](int i) { return vshrq_n_s32(x.v[i], 4); });
}

inline Lanes to_float(Sums x) {
  return each<Lanes>([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}
inline Sums to_int(Lanes x) {
  return each<Sums>([&](int i) { return vcvtnq_s32_f32(x.v[i]); });
}
inline Sums magnitude(Lanes x) {
  return each<Sums>([&](int i) { return vreinterpretq_s32_f32(vabsq_f32(x.v[i])); });
}
inline Lanes power_of_two(Sums n) {
  const Sums biased = add(n, splat_sums(127));
  return each<Lanes>([&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(biased.v[i], 23)); });
}

}  // namespace LDF_ISA
}  // namespace ldf
