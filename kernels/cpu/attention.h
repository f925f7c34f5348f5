// Attention of rows that share K and V: pairs of a token and a query head of one key-value head.
//
// Keys are processed in blocks at fixed positions with a running softmax. Per block, a tile of rows computes its
// scores, then its exponentials, then its sums of values, and loads K and V once for the whole tile. Every
// number comes from the same chain of operations for any tile, so a row's result depends only on the row and its keys.
#pragma once
#include <float.h>
#include <string.h>

#include "attention_codes.h"
#include "attention_f16.h"
#include "rows.h"

namespace ldf {
namespace LDF_ISA {

// A tile of `rows` rows, from row `first` of the queries on. The arrays start with the tile's first row.
struct Tile {
  int first, rows;
  const int32_t *begin, *end;
  float *peak, *total;  // running softmax: the highest score so far, the sum of exponentials relative to it
  float* out;           // the sum of values so far
  ptrdiff_t out_stride;
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
inline void raise_peak(const Tile& tile, int r, int32_t head_dim, float peak) {
  const float shrink = exponential(tile.peak[r] - peak);
  float* out = tile.out + r * tile.out_stride;
  for (int32_t d = 0; d < head_dim; d += 16) store(out + d, mul(load(out + d), splat(shrink)));
  tile.total[r] *= shrink;
  tile.peak[r] = peak;
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
  float peak[ROWS];
  for (int r = 0; r < ROWS; r++) {
    peak[r] = scale_scores(begin[r], end[r], queries.scale(tile.first + r), tile.peak[r], weights[r]);
  }
  for (int r = 0; r < ROWS; r++) {
    if (peak[r] > tile.peak[r]) raise_peak(tile, r, head.head_dim, peak[r]);
    tile.total[r] += exponentiate(begin[r], end[r], peak[r], weights[r]);
  }
  Form::template gather<ROWS>(begin, end, head, block, weights, tile.out, tile.out_stride);
}

template <class Form, int ROWS>
void dispatch_attend_tile(const Tile& tile, const typename Form::Queries& queries, const KvHead& head, int32_t block) {
  if (tile.rows == ROWS) return attend_tile<Form, ROWS>(tile, queries, head, block);
  if constexpr (ROWS > 1) dispatch_attend_tile<Form, ROWS - 1>(tile, queries, head, block);
}

// Attends with at most BAND rows.
template <class Form>
void attend_band(const KvHead& head, const typename Form::Queries& queries, const int32_t* begin, const int32_t* end,
                 int rows, float* out, ptrdiff_t out_stride, const float* sinks) {
  float peak[BAND], total[BAND];
  int32_t first = begin[0], last = end[0];
  for (int r = 0; r < rows; r++) {
    peak[r] = sinks ? sinks[r] : -FLT_MAX;
    total[r] = sinks ? 1.0f : 0.0f;
    memset(out + r * out_stride, 0, static_cast<size_t>(head.head_dim) * sizeof(float));
    first = lower(first, begin[r]);
    last = higher(last, end[r]);
  }
  const int tiles = (rows + TILE - 1) / TILE;
  for (int32_t block = first / BLOCK * BLOCK; block < last; block += BLOCK) {
    for (int t = 0; t < tiles; t++) {
      const int r = rows * t / tiles, next = rows * (t + 1) / tiles;
      const Tile tile{r, next - r, begin + r, end + r, peak + r, total + r, out + r * out_stride, out_stride};
      dispatch_attend_tile<Form, TILE>(tile, queries, head, block);
    }
  }
  for (int r = 0; r < rows; r++) {
    float* row = out + r * out_stride;
    for (int32_t d = 0; d < head.head_dim; d += 16) store(row + d, div(load(row + d), splat(total[r])));
    Form::restore(row, head.head_dim);
  }
}

template <class Form>
void attend_as(const KvHead& head, const float* q, ptrdiff_t q_stride, const int32_t* begin, const int32_t* end,
               int32_t rows, float scale, float* out, ptrdiff_t out_stride, const float* sinks) {
  for (ptrdiff_t r = 0; r < rows; r += BAND) {
    const int band = lower(rows - static_cast<int32_t>(r), BAND);
    const typename Form::Queries queries(q + r * q_stride, q_stride, band, head.head_dim, scale);
    attend_band<Form>(head, queries, begin + r, end + r, band, out + r * out_stride, out_stride,
                      sinks ? sinks + r : nullptr);
  }
}

// sinks[i] is an additional score of row i without a value; null if there are none.
inline void attend(const Cache* cache, const float* q, ptrdiff_t q_stride, const int32_t* begin, const int32_t* end,
                   int32_t rows, int32_t head_dim, float scale, float* out, ptrdiff_t out_stride, const float* sinks) {
  const auto attend_with = cache->value_bits == 16  ? attend_as<F16>
                           : cache->value_bits == 8 ? attend_as<Coded<8>>
                                                    : attend_as<Coded<4>>;
  attend_with({*cache, head_dim}, q, q_stride, begin, end, rows, scale, out, out_stride, sinks);
}

inline void attend(const Cache* cache, const float* q, ptrdiff_t q_stride, const int32_t* begin, const int32_t* end,
                   int32_t rows, int32_t head_dim, float scale, float* out, ptrdiff_t out_stride) {
  attend(cache, q, q_stride, begin, end, rows, head_dim, scale, out, out_stride, nullptr);
}

inline void put_key(const Cache* cache, int32_t head_dim, int32_t position, const float* key) {
  (cache->value_bits == 16 ? F16::put_key : CodedKeys::put_key)(*cache, head_dim, position, key);
}

inline void put_value(const Cache* cache, int32_t head_dim, int32_t position, const float* value) {
  const auto put = cache->value_bits == 16  ? F16::put_value
                   : cache->value_bits == 8 ? Coded<8>::put_value
                                            : Coded<4>::put_value;
  put(*cache, head_dim, position, value);
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
