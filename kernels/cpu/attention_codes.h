// KV cache in codes: a key has 8 bits and a scale for every 32 dimensions, a value has 8 bits or 4 and one scale.
// Queries, and the weights of a block's values, become 16-bit codes row by row, with an error far below that of 8 bits.
// Values in 4 bits are mixed before they are stored, and so is the output.
//
//   score  = total * query_scale, total = fma(dot, key_scale, total) over groups of 32 dimensions in order
//   output = fma(weight_scale, dot, output) over blocks in order; a weight is an exponential times the value's scale
//
// Dot products are integers: exact in any order. A scale is NaN if a number was not finite.
#pragma once
#include <float.h>
#include <string.h>

#include "attention_block.h"

namespace ldf {
namespace LDF_ISA {

// Encodes x [size] in codes up to `max_code`; returns their scale: x = code * scale.
template <class Code>
inline float encode(const float* x, int32_t size, float max_code, Code* codes) {
  Sums largest = zero_sums();
  for (int32_t i = 0; i < size; i += 16) largest = max(largest, magnitude(load(x + i)));
  const int32_t bits = maximum(largest);
  float amax;
  memcpy(&amax, &bits, 4);
  const bool finite = amax <= FLT_MAX;
  const float inverse = max_code / amax;
  if (finite && inverse <= FLT_MAX) {
    for (int32_t i = 0; i < size; i += 16) narrow(codes + i, to_int(mul(load(x + i), splat(inverse))));
    return amax / max_code;
  }
  memset(codes, 0, static_cast<size_t>(size) * sizeof(Code));  // all zero, or too small for a float scale
  return finite ? 0.0f : __builtin_nanf("");
}

constexpr float COARSE = 127.0f, FINEST = 32767.0f;  // largest codes of 8 and 16 bits

class CodedKeys {
 public:
  class Queries {
   public:
    Queries(const float* q, ptrdiff_t stride, int rows, int32_t head_dim, float scale) : head_dim_(head_dim) {
      for (int r = 0; r < rows; r++) {
        scales_[r] = encode(q + r * stride, head_dim, FINEST, codes_ + static_cast<ptrdiff_t>(r) * head_dim) * scale;
      }
    }

    const int16_t* row(int r) const { return codes_ + static_cast<ptrdiff_t>(r) * head_dim_; }
    float scale(int r) const { return scales_[r]; }

   private:
    int32_t head_dim_;
    float scales_[BAND];
    int16_t codes_[BAND_SIZE];
  };

  template <int ROWS>
  static void score(const Queries& queries, int r, const KvHead& head, int32_t block, int first, int last,
                    Weights& scores) {
    constexpr int STEP = unroll_count(ROWS);
    for (; first + STEP <= last; first += STEP) score_strips<ROWS, STEP>(queries.row(r), head, block, first, scores);
    for (; first < last; first++) score_strips<ROWS, 1>(queries.row(r), head, block, first, scores);
  }

  static void put_key(const Cache& cache, int32_t head_dim, int32_t position, const float* key) {
    const ptrdiff_t strip = position / STRIP, at = position % STRIP;
    int8_t* to = static_cast<int8_t*>(cache.keys) + strip * head_dim * STRIP + 2 * at;
    float* scales = cache.key_scales + strip * head_dim / GROUP * STRIP + at;
    for (int32_t d = 0; d < head_dim; d += GROUP) {
      int8_t codes[GROUP];
      scales[d / GROUP * STRIP] = encode(key + d, GROUP, COARSE, codes);
      for (int i = 0; i < GROUP; i += 2) memcpy(to + (d + i) * STRIP, codes + i, 2);
    }
  }

 private:
  template <int ROWS, int STEP>
  static void score_strips(const int16_t* q, const KvHead& head, int32_t block, int strip, Weights& scores) {
    const ptrdiff_t head_dim = head.head_dim, groups = head_dim / GROUP, key = block + strip * STRIP;
    const int8_t* keys = static_cast<int8_t*>(head.cache.keys) + key * head_dim;
    const float* scales = head.cache.key_scales + key * groups;
    Lanes total[ROWS * STEP];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) total[i] = splat(0.0f);
    for (ptrdiff_t group = 0; group < groups; group++) {
      Sums dots[ROWS * STEP];
      Pairs pairs[STEP];
#pragma GCC unroll 16
      for (int i = 0; i < ROWS * STEP; i++) dots[i] = zero_sums();
      for (ptrdiff_t d = group * GROUP; d < (group + 1) * GROUP; d += 2) {
#pragma GCC unroll 16
        for (int s = 0; s < STEP; s++) {
          const int8_t* from = keys + (s * head_dim + d) * STRIP;
          prefetch_next_block(from, BLOCK * head_dim, 16 * d);
          pairs[s] = load_pairs(from);
        }
#pragma GCC unroll 16
        for (int i = 0; i < ROWS * STEP; i++) dots[i] = add_dots(dots[i], pairs[i % STEP], q + i / STEP * head_dim + d);
      }
#pragma GCC unroll 16
      for (int i = 0; i < ROWS * STEP; i++) {
        total[i] = fma(to_float(dots[i]), load(scales + (i % STEP * groups + group) * STRIP), total[i]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) store(scores[i / STEP] + (strip + i % STEP) * STRIP, total[i]);
  }
};

// Multiplies numbers that are 16 dimensions apart by a Hadamard matrix, which spreads a large number over several: over
// four of head_dim 64, two of 96, eight of 128. Returns the factor by which mixing twice multiplies x.
inline int32_t mix(float* x, int32_t head_dim) {
  const int32_t width = head_dim & -head_dim;  // largest power of two that divides it
  for (int32_t half = 16; half < width; half *= 2) {
    for (int32_t at = 0; at < head_dim; at += 2 * half) {
      for (int32_t d = at; d < at + half; d += 16) {
        const Lanes a = load(x + d), b = load(x + d + half);
        store(x + d, add(a, b));
        store(x + d + half, sub(a, b));
      }
    }
  }
  return width / 16;
}

// Returns the nibble of the value code nearest to a code of 8 bits.
inline int nearest_nibble(int code) {
  const int size = code < 0 ? -code : code;
  int nibble = 0;
  while (nibble < 7 && 2 * size > VALUE_CODES[nibble] + VALUE_CODES[nibble + 1]) nibble++;
  return code < 0 ? 8 + nibble : nibble;
}

template <int VALUE_BITS>
class Coded : public CodedKeys {
 public:
  template <int ROWS>
  static void gather(const int* begin, const int* end, const KvHead& head, int32_t block, Weights& weights,
                     float* out, ptrdiff_t stride) {
    constexpr int STEP = unroll_count(ROWS);
    WeightCodes<ROWS> coded;
    coded.first = BLOCK, coded.last = 0;
    for (int r = 0; r < ROWS; r++) {
      coded.scales[r] = encode_weights(begin[r], end[r], head.cache.value_scales + block, weights[r], coded.codes[r]);
      if (begin[r] >= end[r]) continue;
      coded.first = lower(coded.first, begin[r] / 2 * 2);
      coded.last = higher(coded.last, end[r]);
    }
    int32_t d = 0;
    for (; d + 16 * STEP <= head.head_dim; d += 16 * STEP) {
      gather_dimensions<ROWS, STEP>(coded, head, block, d, out + d, stride);
    }
    for (; d < head.head_dim; d += 16) gather_dimensions<ROWS, 1>(coded, head, block, d, out + d, stride);
  }

  static void restore(float* out, int32_t head_dim) {
    if constexpr (VALUE_BITS == 4) {
      const Lanes inverse = splat(1.0f / static_cast<float>(mix(out, head_dim)));
      for (int32_t d = 0; d < head_dim; d += 16) store(out + d, mul(load(out + d), inverse));
    }
  }

  static void put_value(const Cache& cache, int32_t head_dim, int32_t position, const float* value) {
    float mixed[LARGEST];
    int8_t codes[LARGEST];
    memcpy(mixed, value, static_cast<size_t>(head_dim) * sizeof(float));
    if constexpr (VALUE_BITS == 4) mix(mixed, head_dim);
    cache.value_scales[position] = encode(mixed, head_dim, COARSE, codes);
    uint8_t* to = static_cast<uint8_t*>(cache.values) + position / 2 * pair_bytes(head_dim) + position % 2;
    if constexpr (VALUE_BITS == 8) {
      for (int32_t d = 0; d < head_dim; d++) to[2 * d] = static_cast<uint8_t>(codes[d]);
    } else {
      for (int32_t d = 0; d < head_dim; d++) codes[d] = static_cast<int8_t>(nearest_nibble(codes[d]));
      for (int32_t d = 0; d < head_dim; d += 16) {
        for (int i = d; i < d + 8; i++) to[d + 2 * (i - d)] = static_cast<uint8_t>(codes[i] | codes[i + 8] << 4);
      }
    }
  }

 private:
  // Weights of a block's values: 0 for keys that a row does not see; keys that no row sees are left out.
  template <int ROWS>
  struct WeightCodes {
    int16_t codes[ROWS][BLOCK];
    float scales[ROWS];
    int first, last;
  };

  // Returns the bytes of two values.
  static ptrdiff_t pair_bytes(ptrdiff_t dimensions) { return dimensions * VALUE_BITS / 4; }

  // Encodes a row's weights times the values' scales, 0 for keys that it does not see. Returns the scale of the codes.
  static float encode_weights(int begin, int end, const float* scales, float* weights, int16_t* codes) {
    if (begin >= end) {
      memset(codes, 0, BLOCK * sizeof *codes);
      return -0.0f;  // -0 * 0 leaves every sum unchanged, even the sign of a zero
    }
    for (int at = 0; at < BLOCK; at += 16) {
      if (at + 16 <= begin || at >= end) {
        store(weights + at, splat(0.0f));
        continue;
      }
      const Lanes scaled = mul(load(weights + at), load(scales + at));
      store(weights + at, inside(scaled, begin - at, end - at, splat(0.0f)));
    }
    return encode(weights, BLOCK, FINEST, codes);
  }

  // Gathers STEP * 16 dimensions of ROWS rows.
  template <int ROWS, int STEP>
  static void gather_dimensions(const WeightCodes<ROWS>& weights, const KvHead& head, int32_t block, int32_t d,
                                float* out, ptrdiff_t stride) {
    const ptrdiff_t pair = pair_bytes(head.head_dim);
    const uint8_t* values =
        static_cast<uint8_t*>(head.cache.values) + (block + weights.first) / 2 * pair + pair_bytes(d);
    Sums dots[ROWS * STEP];
    Pairs pairs[STEP];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) dots[i] = zero_sums();
    for (int key = weights.first; key < weights.last; key += 2, values += pair) {
#pragma GCC unroll 16
      for (int s = 0; s < STEP; s++) {
        const uint8_t* from = values + pair_bytes(16 * s);
        prefetch_next_block(from, BLOCK / 2 * pair, pair_bytes(16 * s));
        if constexpr (VALUE_BITS == 8) pairs[s] = load_pairs(reinterpret_cast<const int8_t*>(from));
        if constexpr (VALUE_BITS == 4) pairs[s] = load_pairs(from, VALUE_CODES);
      }
#pragma GCC unroll 16
      for (int i = 0; i < ROWS * STEP; i++) dots[i] = add_dots(dots[i], pairs[i % STEP], weights.codes[i / STEP] + key);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) {
      float* to = out + i / STEP * stride + i % STEP * 16;
      store(to, fma(splat(weights.scales[i / STEP]), to_float(dots[i]), load(to)));
    }
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
