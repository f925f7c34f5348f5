// Attention of rows that share K and V: pairs of a token and a query head of one key-value head.
//
// Keys are processed in blocks at fixed positions with a running softmax. Each part of the keys (PART) has its own, so
// that threads can share the keys; parts are added up in order. Per block, a tile of rows computes its scores, then its
// exponentials, then its sums of values, and loads K and V once for the whole tile. Every number comes from the same
// chain of operations for any tile, so a row's result depends only on the row and its keys.
#pragma once
#include <float.h>
#include <string.h>

#include "attention_codes.h"
#include "attention_f16.h"
#include "rows.h"

namespace ldf {
namespace LDF_ISA {

// Running softmaxes of rows.
struct Softmax {
  float *peak, *total;  // the highest score so far, the sum of exponentials relative to it
  float* values;        // the sum of values times exponentials so far, rows `stride` apart
  ptrdiff_t stride;

  Softmax from(ptrdiff_t r) const { return {peak + r, total + r, values + r * stride, stride}; }
};

// A tile of `rows` rows, from row `first` of the queries on. The arrays start with the tile's first row.
struct Tile {
  int first, rows;
  const int32_t *begin, *end;
  Softmax sums;
};

// Scales the scores of a block; scores of keys outside `begin` up to `end` become -infinity. Returns the highest
// score, or `peak` if that is higher.
inline float scale_scores(int begin, int end, float scale, float peak, float* scores) {
  Lanes highest = splat(peak);
  for (int at = begin / 16 * 16; at < end; at += 16) {
    Lanes scaled = mul(load(scores + at), splat(scale));
    if (at < begin || at + 16 > end) scaled = inside(scaled, begin - at, end - at, splat(-__builtin_inff()));
    store(scores + at, scaled);
    highest = max(scaled, highest);  // ignores NaN, which shows up in the exponential
  }
  return maximum(highest);
}

// Turns scores into exponentials relative to `peak`, 0 for keys that are not seen. Returns their sum.
inline float exponentiate(int begin, int end, float peak, float* weights) {
  Lanes total = splat(0.0f);
  for (int at = begin / 16 * 16; at < end; at += 16) {
    const Lanes weight = exponential(sub(load(weights + at), splat(peak)));
    store(weights + at, weight);
    total = add(total, weight);
  }
  return sum(total);
}

// Rescales the sums of row r to a higher peak.
inline void raise_peak(const Softmax& sums, int r, int32_t head_dim, float peak) {
  const float shrink = exponential(sums.peak[r] - peak);
  float* values = sums.values + r * sums.stride;
  for (int32_t d = 0; d < head_dim; d += 16) store(values + d, mul(load(values + d), splat(shrink)));
  sums.total[r] *= shrink;
  sums.peak[r] = peak;
}

// Processes one block of keys for ROWS rows.
template <class Form, int ROWS>
void attend_tile(const Tile& tile, const typename Form::Queries& queries, const KvHead& head, int32_t block) {
  int begin[ROWS], end[ROWS];  // the keys of the block that each row sees
  int lowest = BLOCK, highest = 0;
  for (int r = 0; r < ROWS; r++) {
    begin[r] = higher(tile.begin[r] - block, 0);
    end[r] = lower(tile.end[r] - block, BLOCK);
    if (begin[r] >= end[r]) continue;
    lowest = lower(lowest, begin[r]);
    highest = higher(highest, end[r]);
  }
  if (lowest >= highest) return;
  Weights weights;
  Form::template score<ROWS>(queries, tile.first, head, block, lowest / STRIP, (highest + STRIP - 1) / STRIP, weights);
  const Softmax sums = tile.sums;
  float peak[ROWS];
  for (int r = 0; r < ROWS; r++) {
    peak[r] = scale_scores(begin[r], end[r], queries.scale(tile.first + r), sums.peak[r], weights[r]);
  }
  for (int r = 0; r < ROWS; r++) {
    if (peak[r] > sums.peak[r]) raise_peak(sums, r, head.head_dim, peak[r]);
    sums.total[r] += exponentiate(begin[r], end[r], peak[r], weights[r]);
  }
  Form::template gather<ROWS>(begin, end, head, block, weights, sums.values, sums.stride);
}

template <class Form, int ROWS>
void dispatch_attend_tile(const Tile& tile, const typename Form::Queries& queries, const KvHead& head, int32_t block) {
  if (tile.rows == ROWS) return attend_tile<Form, ROWS>(tile, queries, head, block);
  if constexpr (ROWS > 1) dispatch_attend_tile<Form, ROWS - 1>(tile, queries, head, block);
}

// Starts running softmaxes: empty, or with sinks[r] as a score without a value.
inline void start(const Softmax& sums, int rows, int32_t head_dim, const float* sinks) {
  for (int r = 0; r < rows; r++) {
    sums.peak[r] = sinks ? sinks[r] : -FLT_MAX;
    sums.total[r] = sinks ? 1.0f : 0.0f;
    memset(sums.values + r * sums.stride, 0, static_cast<size_t>(head_dim) * sizeof(float));
  }
}

// Computes the running softmaxes of one part of the keys.
template <class Form>
void attend_part(const KvHead& head, const typename Form::Queries& queries, const int32_t* begin, const int32_t* end,
                 int rows, int32_t part, const Softmax& sums) {
  start(sums, rows, head.head_dim, nullptr);
  int32_t first = (part + 1) * PART, last = part * PART;
  for (int r = 0; r < rows; r++) {
    first = lower(first, begin[r]);
    last = higher(last, end[r]);
  }
  first = higher(first, part * PART);
  last = lower(last, (part + 1) * PART);
  const int tiles = (rows + TILE - 1) / TILE;
  for (int32_t block = first / BLOCK * BLOCK; block < last; block += BLOCK) {
    for (int t = 0; t < tiles; t++) {
      const int r = rows * t / tiles, next = rows * (t + 1) / tiles;
      dispatch_attend_tile<Form, TILE>({r, next - r, begin + r, end + r, sums.from(r)}, queries, head, block);
    }
  }
}

// Adds row r's softmax of a part of the keys to that of the parts before.
inline void add_part(const Softmax& part, int r, int32_t head_dim, const Softmax& sums) {
  if (part.total[r] == 0.0f) return;  // the row sees no key of the part
  const float peak = part.peak[r] > sums.peak[r] ? part.peak[r] : sums.peak[r];
  const float before = exponential(sums.peak[r] - peak), added = exponential(part.peak[r] - peak);
  const float* from = part.values + r * part.stride;
  float* to = sums.values + r * sums.stride;
  for (int32_t d = 0; d < head_dim; d += 16) {
    store(to + d, fma(load(from + d), splat(added), mul(load(to + d), splat(before))));
  }
  sums.total[r] = __builtin_fmaf(part.total[r], added, sums.total[r] * before);
  sums.peak[r] = peak;
}

// Turns a row's sum of values into its output.
template <class Form>
void finish(const Softmax& sums, int r, int32_t head_dim) {
  float* row = sums.values + r * sums.stride;
  for (int32_t d = 0; d < head_dim; d += 16) store(row + d, div(load(row + d), splat(sums.total[r])));
  Form::restore(row, head_dim);
}

// Attends with the rows of a band, part by part.
template <class Form>
void attend_band(const KvHead& head, const typename Form::Queries& queries, const int32_t* begin, const int32_t* end,
                 int rows, float* out, ptrdiff_t out_stride, const float* sinks) {
  float peak[2][BAND], total[2][BAND], values[BAND_SIZE];
  const Softmax sums{peak[0], total[0], out, out_stride}, part{peak[1], total[1], values, head.head_dim};
  int32_t first = begin[0], last = end[0];
  for (int r = 1; r < rows; r++) {
    first = lower(first, begin[r]);
    last = higher(last, end[r]);
  }
  start(sums, rows, head.head_dim, sinks);
  for (int32_t p = first / PART; p * PART < last; p++) {
    attend_part<Form>(head, queries, begin, end, rows, p, part);
    for (int r = 0; r < rows; r++) add_part(part, r, head.head_dim, sums);
  }
  for (int r = 0; r < rows; r++) finish<Form>(sums, r, head.head_dim);
}

// Calls `use` with the KV cache's format.
template <class Use>
void with_cache_format(const Cache& cache, Use use) {
  if (cache.value_bits == 16) return use(F16());
  if (cache.value_bits == 8) return use(Coded<8>());
  use(Coded<4>());
}

// sinks[i] is an additional score of row i without a value; null if there are none.
inline void attend(const Cache* cache, const float* q, ptrdiff_t q_stride, const int32_t* begin, const int32_t* end,
                   int32_t rows, int32_t head_dim, float scale, float* out, ptrdiff_t out_stride, const float* sinks) {
  with_cache_format(*cache, [&](auto format) {
    for (int32_t r = 0, band; r < rows; r += band) {
      band = band_of(rows - r, head_dim);
      const typename decltype(format)::Queries queries(q + r * q_stride, q_stride, band, head_dim, scale);
      attend_band<decltype(format)>({*cache, head_dim}, queries, begin + r, end + r, band, out + r * out_stride,
                                    out_stride, sinks ? sinks + r : nullptr);
    }
  });
}

inline void attend(const Cache* cache, const float* q, ptrdiff_t q_stride, const int32_t* begin, const int32_t* end,
                   int32_t rows, int32_t head_dim, float scale, float* out, ptrdiff_t out_stride) {
  attend(cache, q, q_stride, begin, end, rows, head_dim, scale, out, out_stride, nullptr);
}

// Attends to one part of the keys. q is [rows][head_dim].
inline void attend_to_part(const Cache& cache, const float* q, const int32_t* begin, const int32_t* end, int32_t rows,
                           int32_t head_dim, float scale, int32_t part, const Softmax& sums) {
  with_cache_format(cache, [&](auto format) {
    for (int32_t r = 0, band; r < rows; r += band) {
      band = band_of(rows - r, head_dim);
      const typename decltype(format)::Queries queries(q + r * head_dim, head_dim, band, head_dim, scale);
      attend_part<decltype(format)>({cache, head_dim}, queries, begin + r, end + r, band, part, sums.from(r));
    }
  });
}

inline void put_key(const Cache* cache, int32_t head_dim, int32_t position, const float* key) {
  with_cache_format(*cache, [&](auto format) { format.put_key(*cache, head_dim, position, key); });
}

inline void put_value(const Cache* cache, int32_t head_dim, int32_t position, const float* value) {
  with_cache_format(*cache, [&](auto format) { format.put_value(*cache, head_dim, position, value); });
}

// Returns the cache of one key-value head, from that of all heads in sequence.
inline Cache cache_of(const Cache& all, int32_t capacity, int32_t head_dim, int32_t kv_head) {
  const ptrdiff_t first = static_cast<ptrdiff_t>(kv_head) * capacity;
  const int32_t bits = all.value_bits;
  uint8_t* keys = static_cast<uint8_t*>(all.keys) + first * head_dim * (bits == 16 ? 2 : 1);
  uint8_t* values = static_cast<uint8_t*>(all.values) + first * head_dim * bits / 8;
  if (bits == 16) return {keys, values, nullptr, nullptr, bits};
  return {keys, values, all.key_scales + first * head_dim / GROUP, all.value_scales + first, bits};
}

}  // namespace LDF_ISA
}  // namespace ldf
