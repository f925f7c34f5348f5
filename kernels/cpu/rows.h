// Functions of single rows of activations; formats.h describes their quantization. Sizes are multiples of 16, or of 32
// for quantization.
#pragma once
#include <float.h>
#include <string.h>

#include "formats.h"
#include "simd.h"

namespace ldf {
namespace LDF_ISA {

// e^x within 2 units in the last place; 0 below -104, inf above 89, NaN for NaN.
inline Lanes exponential(Lanes x) {
  const Lanes clamped = max(splat(-104.0f), min(splat(89.0f), x));  // keeps NaN, the second operand
  const Sums n = to_int(mul(clamped, splat(0x1.715476p0f)));        // log2(e)
  const Lanes whole = to_float(n);
  const Lanes r = fma(whole, splat(0x1.05c61p-29f), fma(whole, splat(-0x1.62e43p-1f), clamped));  // ln(2) in two parts
  Lanes p = splat(0x1.6a2434p-10f);  // e^r = 1 + r + r^2 p(r), fitted for |r| <= ln(2) / 2
  p = fma(p, r, splat(0x1.1239e2p-7f));
  p = fma(p, r, splat(0x1.5558f2p-5f));
  p = fma(p, r, splat(0x1.555492p-3f));
  p = fma(p, r, splat(0x1.fffffcp-2f));
  p = add(fma(mul(r, r), p, r), splat(1.0f));
  const Sums half = to_int(mul(whole, splat(0.5f)));  // 2^n alone may be subnormal
  return mul(mul(p, power_of_two(half)), power_of_two(sub(n, half)));
}

inline float exponential(float x) {
  float lanes[16];
  store(lanes, exponential(splat(x)));
  return lanes[0];
}

// Quantizes one row x [k].
inline void quantize(const float* x, int32_t k, const Rows& out) {
  for (int32_t at = 0; at < k; at += GROUP) {
    const Lanes low = load(x + at), high = load(x + at + 16);
    const int32_t bits = maximum(max(magnitude(low), magnitude(high)));
    float amax;
    memcpy(&amax, &bits, 4);
    const bool finite = amax <= FLT_MAX;
    const float inverse = 127.0f / amax;
    const bool has_scale = finite && inverse <= FLT_MAX;  // otherwise all zero, or too small for a float scale
    const Lanes steps = splat(inverse);
    const Sums first = has_scale ? to_int(mul(low, steps)) : zero_sums();
    const Sums second = has_scale ? to_int(mul(high, steps)) : zero_sums();
    narrow(out.codes + at, first);
    narrow(out.codes + at + 16, second);
    const int32_t sum0 = sum(first), sum1 = sum(second);
    const float scale = has_scale ? amax / 127.0f : finite ? 0.0f : __builtin_nanf("");
    out.sums[at / 16] = sum0;
    out.sums[at / 16 + 1] = sum1;
    out.scales[at / GROUP] = scale;
    out.totals[at / GROUP] = static_cast<float>(sum0 + sum1) * scale;
  }
}

// Quantizes rows x [rows][k].
inline void quantize_rows(const float* x, int32_t rows, int32_t k, Rows* out) {
  for (ptrdiff_t row = 0; row < rows; row++) {
    const ptrdiff_t at = row * k;
    quantize(x + at, k, {out->codes + at, out->scales + at / GROUP, out->sums + at / 16, out->totals + at / GROUP});
  }
}

// out = x / sqrt(mean(x^2) + eps) * weight; may be x itself.
inline void norm(const float* x, const float* weight, float eps, int32_t size, float* out) {
  Lanes squares = splat(0.0f);
  for (int32_t i = 0; i < size; i += 16) {
    const Lanes lanes = load(x + i);
    squares = fma(lanes, lanes, squares);
  }
  const float mean = sum(squares) / static_cast<float>(size);
  const Lanes inverse = splat(1.0f / __builtin_sqrtf(mean + eps));
  for (int32_t i = 0; i < size; i += 16) store(out + i, mul(mul(load(x + i), inverse), load(weight + i)));
}

// Rotates pairs (i, i + head_dim / 2) of x [head_dim] by angles, given as cosines and sines [head_dim / 2].
inline void rotate(float* x, const float* cosines, const float* sines, int32_t head_dim) {
  const int32_t half = head_dim / 2;
  for (int32_t i = 0; i < half; i++) {  // nothing is fused, so that any order of lanes gives the same bits
    const float first = x[i], second = x[i + half];
    x[i] = first * cosines[i] - second * sines[i];
    x[i + half] = second * cosines[i] + first * sines[i];
  }
}

inline Lanes sigmoid(Lanes x) { return div(splat(1.0f), add(splat(1.0f), exponential(sub(splat(0.0f), x)))); }

// out = gate / (1 + e^-gate) * up; out may be gate or up.
inline void swiglu(const float* gate, const float* up, int32_t size, float* out) {
  for (int32_t i = 0; i < size; i += 16) {
    const Lanes g = load(gate + i);
    const Lanes open = add(splat(1.0f), exponential(sub(splat(0.0f), g)));
    store(out + i, mul(div(g, open), load(up + i)));
  }
}

// out = gate / (1 + e^(-1.702 gate)) * (up + 1), with gate clamped to `limit` and up to -limit..limit.
inline void swiglu_clamped(const float* gate, const float* up, float limit, int32_t size, float* out) {
  const Lanes highest = splat(limit), lowest = splat(-limit), one = splat(1.0f);
  for (int32_t i = 0; i < size; i += 16) {
    const Lanes g = min(highest, load(gate + i)), u = max(lowest, min(highest, load(up + i)));  // keeps NaN
    store(out + i, mul(div(g, add(one, exponential(mul(g, splat(-1.702f))))), add(u, one)));
  }
}

// x *= factor.
inline void multiply(float* x, float factor, int32_t size) {
  for (int32_t i = 0; i < size; i += 16) store(x + i, mul(load(x + i), splat(factor)));
}

// x *= factor; then, if cap > 0, x = cap * tanh(x / cap).
inline void scale_and_cap(float* x, float factor, float cap, int32_t size) {
  multiply(x, factor, size);
  const Lanes one = splat(1.0f), two = splat(2.0f);
  for (int32_t i = 0; cap > 0 && i < size; i += 16) {
    const Lanes raised = exponential(mul(two, div(load(x + i), splat(cap))));
    store(x + i, mul(sub(one, div(two, add(raised, one))), splat(cap)));
  }
}

inline float dot(const float* a, const float* b, int32_t size) {
  Lanes total = splat(0.0f);
  for (int32_t i = 0; i < size; i += 16) total = fma(load(a + i), load(b + i), total);
  return sum(total);
}

// x += bias.
inline void add_bias(float* x, const float* bias, int32_t size) {
  for (int32_t i = 0; i < size; i += 16) store(x + i, add(load(x + i), load(bias + i)));
}

// The likeliest of some tokens (ties go to the lowest) and `total`, the sum of e^(logit - the best logit) over them.
// `total` is NaN if any logit is NaN.
struct Best {
  int32_t token;
  float logit, total;
};

// Loads lanes of logits [count] from `at`, padded with -inf.
inline Lanes load_logits(const float* logits, int32_t at, int32_t count) {
  if (at + 16 <= count) return load(logits + at);
  float lanes[16];
  store(lanes, splat(-__builtin_inff()));
  memcpy(lanes, logits + at, static_cast<size_t>(count - at) * sizeof(float));
  return load(lanes);
}

// Returns the best of the tokens first, first + 1, ... with logits [count]. The sum's last bits depend on the split.
inline Best best_of(const float* logits, int32_t first, int32_t count) {
  Lanes best = splat(-FLT_MAX);  // ignores NaN; -inf contributes nothing, even if all logits are -inf
  for (int32_t i = 0; i < count; i += 16) best = max(load_logits(logits, i, count), best);
  const float logit = maximum(best);
  Lanes total = splat(0.0f);
  for (int32_t i = 0; i < count; i += 16) {
    total = add(total, exponential(sub(load_logits(logits, i, count), splat(logit))));
  }
  int32_t index = 0;
  while (index < count && logits[index] != logit) index++;
  return {first + (index < count ? index : 0), logit, sum(total)};
}

// Returns the best token without the sum: `total` is 0, or NaN if a logit is NaN or infinity.
inline Best likeliest_of(const float* logits, int32_t first, int32_t count) {
  const Lanes lowest = splat(-FLT_MAX);
  Lanes best = lowest;
  Sums largest = zero_sums();
  for (int32_t i = 0; i < count; i += 16) {
    const Lanes lanes = load_logits(logits, i, count);
    best = max(lanes, best);
    largest = max(largest, magnitude(max(lowest, lanes)));  // keeps NaN, the second operand
  }
  const float logit = maximum(best);
  int32_t index = 0;
  while (index < count && logits[index] != logit) index++;
  const int32_t bits = maximum(largest);
  float amax;
  memcpy(&amax, &bits, 4);
  return {first + (index < count ? index : 0), logit, amax <= FLT_MAX ? 0.0f : __builtin_nanf("")};
}

// Merges the results of two disjoint sets of tokens.
inline Best better(Best a, Best b) {
  if (b.logit > a.logit || (b.logit == a.logit && b.token < a.token)) return better(b, a);
  return {a.token, a.logit, a.total + b.total * exponential(b.logit - a.logit)};
}

}  // namespace LDF_ISA
}  // namespace ldf
