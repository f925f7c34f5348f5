// KV cache in float16. Scores are summed over the head's dimensions in order, outputs over the keys in order.
#pragma once
#include "attention_block.h"

namespace ldf {
namespace LDF_ISA {

class F16 {
 public:
  class Queries {
   public:
    Queries(const float* q, ptrdiff_t stride, int, int32_t, float scale) : q_(q), stride_(stride), scale_(scale) {}

    const float* row(int r) const { return q_ + r * stride_; }
    ptrdiff_t stride() const { return stride_; }
    float scale(int) const { return scale_; }

   private:
    const float* q_;
    ptrdiff_t stride_;
    float scale_;
  };

  template <int ROWS>
  static void score(const Queries& queries, int r, const KvHead& head, int32_t block, int first, int last,
                    Weights& scores) {
    constexpr int STEP = unroll_count(ROWS);
    const uint16_t* keys = keys_of(head.cache) + static_cast<ptrdiff_t>(block) * head.head_dim;
    const ptrdiff_t strip = static_cast<ptrdiff_t>(head.head_dim) * STRIP;
    for (; first + STEP <= last; first += STEP) {
      score_strips<ROWS, STEP>(queries, r, keys + first * strip, head.head_dim, scores, first);
    }
    for (; first < last; first++) {
      score_strips<ROWS, 1>(queries, r, keys + first * strip, head.head_dim, scores, first);
    }
  }

  // Keys that only some rows see are gathered row by row.
  template <int ROWS>
  static void gather(const int* begin, const int* end, const KvHead& head, int32_t block, Weights& weights,
                     float* out, ptrdiff_t stride) {
    int all_begin = 0, all_end = BLOCK;
    for (int r = 0; r < ROWS; r++) {
      all_begin = higher(all_begin, begin[r]);
      all_end = lower(all_end, end[r]);
    }
    all_end = higher(all_begin, all_end);
    const auto alone = [&](int r, int from, int to) {
      gather_rows<1>(weights + r, head, block, from, to, out + r * stride, stride);
    };
    for (int r = 0; r < ROWS; r++) alone(r, begin[r], lower(end[r], all_begin));
    gather_rows<ROWS>(weights, head, block, all_begin, all_end, out, stride);
    for (int r = 0; r < ROWS; r++) alone(r, higher(begin[r], all_end), end[r]);
  }

  static void put_key(const Cache& cache, int32_t head_dim, int32_t position, const float* key) {
    uint16_t* to = keys_of(cache) + static_cast<ptrdiff_t>(position / STRIP) * head_dim * STRIP + position % STRIP;
    for (int32_t d = 0; d < head_dim; d += 16) {
      uint16_t halves[16];
      store_half(halves, load(key + d));
      for (int i = 0; i < 16; i++) to[(d + i) * STRIP] = halves[i];
    }
  }

  static void restore(float*, int32_t) {}

  static void put_value(const Cache& cache, int32_t head_dim, int32_t position, const float* value) {
    uint16_t* to = values_of(cache) + static_cast<ptrdiff_t>(position) * head_dim;
    for (int32_t d = 0; d < head_dim; d += 16) store_half(to + d, load(value + d));
  }

 private:
  static uint16_t* keys_of(const Cache& cache) { return static_cast<uint16_t*>(cache.keys); }
  static uint16_t* values_of(const Cache& cache) { return static_cast<uint16_t*>(cache.values); }

  // Computes q k of ROWS rows and STEP strips of keys, not scaled. Flat unrolled loops keep the sums in registers.
  template <int ROWS, int STEP>
  static void score_strips(const Queries& queries, int r, const uint16_t* keys, int32_t head_dim, Weights& scores,
                           int strip) {
    const float* q = queries.row(r);
    const ptrdiff_t stride = queries.stride(), next = static_cast<ptrdiff_t>(BLOCK) * head_dim * 2;
    Lanes sums[ROWS * STEP], key[STEP];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) sums[i] = splat(0.0f);
    for (int32_t d = 0; d < head_dim; d++) {
#pragma GCC unroll 16
      for (int s = 0; s < STEP; s++) {
        const uint16_t* from = keys + (static_cast<ptrdiff_t>(s) * head_dim + d) * STRIP;
        prefetch_next_block(from, next, 32 * d);
        key[s] = load_half(from);
      }
#pragma GCC unroll 16
      for (int i = 0; i < ROWS * STEP; i++) sums[i] = fma(splat(q[i / STEP * stride + d]), key[i % STEP], sums[i]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) store(scores[i / STEP] + (strip + i % STEP) * STRIP, sums[i]);
  }

  // Gathers keys `from` up to `to` of the block, for ROWS rows.
  template <int ROWS>
  static void gather_rows(const float (*weights)[BLOCK], const KvHead& head, int32_t block, int from, int to,
                          float* out, ptrdiff_t stride) {
    if (from >= to) return;
    constexpr int STEP = unroll_count(ROWS);
    const uint16_t* values = values_of(head.cache) + static_cast<ptrdiff_t>(block) * head.head_dim;
    int32_t d = 0;
    for (; d + 16 * STEP <= head.head_dim; d += 16 * STEP) {
      gather_dimensions<ROWS, STEP>(weights, values + d, head.head_dim, from, to, out + d, stride);
    }
    for (; d < head.head_dim; d += 16) {
      gather_dimensions<ROWS, 1>(weights, values + d, head.head_dim, from, to, out + d, stride);
    }
  }

  // Gathers STEP * 16 dimensions.
  template <int ROWS, int STEP>
  static void gather_dimensions(const float (*weights)[BLOCK], const uint16_t* values, int32_t head_dim, int from,
                                int to, float* out, ptrdiff_t stride) {
    const ptrdiff_t next = static_cast<ptrdiff_t>(BLOCK) * head_dim * 2;
    Lanes sums[ROWS * STEP], value[STEP];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) sums[i] = load(out + i / STEP * stride + i % STEP * 16);
    for (int key = from; key < to; key++) {
#pragma GCC unroll 16
      for (int s = 0; s < STEP; s++) {
        const uint16_t* from = values + static_cast<ptrdiff_t>(key) * head_dim + 16 * s;
        prefetch_next_block(from, next, 32 * s);
        value[s] = load_half(from);
      }
#pragma GCC unroll 16
      for (int i = 0; i < ROWS * STEP; i++) sums[i] = fma(splat(weights[i / STEP][key]), value[i % STEP], sums[i]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) store(out + i / STEP * stride + i % STEP * 16, sums[i]);
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
