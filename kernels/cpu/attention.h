// Attention of rows that share keys and values: pairs of a token and a query head of one key-value head.
//
// Keys are walked in blocks at fixed positions with a running softmax. Per block, a tile of rows takes its scores, then
// its exponentials, then its sums of values, loading keys and values once for all of the tile. Every number comes from
// the same chain of operations whatever the tile: a score adds up over the head's dimensions in order, an output over
// the keys in order. So a row's result depends on nothing but the row and its keys.
#pragma once
#include <float.h>
#include <string.h>

#include "formats.h"
#include "rows.h"
#include "simd.h"

namespace ldf {
namespace LDF_ISA {

constexpr int BLOCK = 64;  // keys
constexpr int BAND = 64;   // rows that pass over the keys together

// Rows of a tile, from row 0 of each array.
struct Tile {
  const float* q;
  ptrdiff_t q_stride;
  const int32_t *begin, *end;
  float *peak, *total;  // running softmax: the highest score so far, the sum of exponentials relative to it
  float* out;           // the sum of values so far
  ptrdiff_t out_stride;
  int rows;
};

struct Heads {
  const Cache* cache;
  int32_t head_dim;
  float scale;
};

using Weights = float[TILE][BLOCK];  // scores, then their exponentials

inline int32_t lower(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t higher(int32_t a, int32_t b) { return a > b ? a : b; }

// Scores of ROWS rows with STEP strips of keys: q k, not scaled. Flat loops, unrolled, so that the sums are registers.
template <int ROWS, int STEP>
inline void score_strips(const float* q, ptrdiff_t q_stride, const uint16_t* keys, int32_t head_dim,
                         float (*scores)[BLOCK]) {
  Lanes sums[ROWS * STEP], key[STEP];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS * STEP; i++) sums[i] = splat(0.0f);
  for (int32_t d = 0; d < head_dim; d++) {
#pragma GCC unroll 16
    for (int s = 0; s < STEP; s++) key[s] = load_half(keys + (static_cast<ptrdiff_t>(s) * head_dim + d) * 16);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) sums[i] = fma(splat(q[i / STEP * q_stride + d]), key[i % STEP], sums[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS * STEP; i++) store(scores[i / STEP] + i % STEP * 16, sums[i]);
}

// Of strips `first` up to `last` of the block.
template <int ROWS>
inline void score(const Tile& tile, const Heads& heads, int32_t block, int first, int last, Weights& scores) {
  constexpr int STEP = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1;  // enough sums to keep the multipliers busy
  const uint16_t* keys = heads.cache->keys + static_cast<ptrdiff_t>(block) * heads.head_dim;
  const ptrdiff_t strip = static_cast<ptrdiff_t>(heads.head_dim) * 16;
  for (; first + STEP <= last; first += STEP) {
    score_strips<ROWS, STEP>(tile.q, tile.q_stride, keys + first * strip, heads.head_dim,
                             reinterpret_cast<float(*)[BLOCK]>(&scores[0][16 * first]));
  }
  for (; first < last; first++) {
    score_strips<ROWS, 1>(tile.q, tile.q_stride, keys + first * strip, heads.head_dim,
                          reinterpret_cast<float(*)[BLOCK]>(&scores[0][16 * first]));
  }
}

// The highest score of the keys `begin` up to `end` of the block, or `peak` if that is higher; scales the scores, and
// gives keys that are not seen the lowest.
inline float scale_scores(int begin, int end, float scale, float peak, float* scores) {
  Lanes highest = splat(peak);
  for (int at = begin / 16 * 16; at < end; at += 16) {
    Lanes scaled = mul(load(scores + at), splat(scale));
    if (at < begin || at + 16 > end) scaled = inside(scaled, begin - at, end - at, splat(-__builtin_inff()));
    store(scores + at, scaled);
    highest = max(scaled, highest);  // of NaN and the highest, the highest: NaN shows up in the exponential
  }
  return maximum(highest);
}

// Scores become exponentials relative to `peak`, 0 where a key is not seen; returns their sum.
inline float soften(int begin, int end, float peak, float* weights) {
  Lanes total = splat(0.0f);
  for (int at = begin / 16 * 16; at < end; at += 16) {
    const Lanes weight = exponential(sub(load(weights + at), splat(peak)));
    store(weights + at, weight);
    total = add(total, weight);
  }
  return sum(total);
}

// What row r has so far becomes relative to a higher peak.
inline void raise_peak(const Tile& tile, int r, int32_t head_dim, float peak) {
  const float shrink = exponential(tile.peak[r] - peak);
  float* out = tile.out + r * tile.out_stride;
  for (int32_t d = 0; d < head_dim; d += 16) store(out + d, mul(load(out + d), splat(shrink)));
  tile.total[r] *= shrink;
  tile.peak[r] = peak;
}

// out += weights values, over keys `from` up to `to` of the block, for ROWS rows and STEP * 16 dimensions.
template <int ROWS, int STEP>
inline void gather_strips(const float (*weights)[BLOCK], const uint16_t* values, int32_t head_dim, int from, int to,
                          float* out, ptrdiff_t out_stride) {
  Lanes sums[ROWS * STEP], value[STEP];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS * STEP; i++) sums[i] = load(out + i / STEP * out_stride + i % STEP * 16);
  for (int key = from; key < to; key++) {
#pragma GCC unroll 16
    for (int s = 0; s < STEP; s++) value[s] = load_half(values + static_cast<ptrdiff_t>(key) * head_dim + 16 * s);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * STEP; i++) sums[i] = fma(splat(weights[i / STEP][key]), value[i % STEP], sums[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS * STEP; i++) store(out + i / STEP * out_stride + i % STEP * 16, sums[i]);
}

// Of rows r, r + 1, ... of the tile.
template <int ROWS>
inline void gather(const Tile& tile, int r, const Heads& heads, int32_t block, int from, int to,
                   const Weights& weights) {
  if (from >= to) return;
  constexpr int STEP = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1;
  const uint16_t* values = heads.cache->values + static_cast<ptrdiff_t>(block) * heads.head_dim;
  float* out = tile.out + r * tile.out_stride;
  int32_t d = 0;
  for (; d + 16 * STEP <= heads.head_dim; d += 16 * STEP) {
    gather_strips<ROWS, STEP>(weights + r, values + d, heads.head_dim, from, to, out + d, tile.out_stride);
  }
  for (; d < heads.head_dim; d += 16) {
    gather_strips<ROWS, 1>(weights + r, values + d, heads.head_dim, from, to, out + d, tile.out_stride);
  }
}

// One block of keys for ROWS rows. Keys that only some of the rows see are gathered row by row.
template <int ROWS>
void attend_tile(const Tile& tile, const Heads& heads, int32_t block) {
  int begin[ROWS], end[ROWS];  // the keys of the block that each row sees
  int lowest = BLOCK, highest = 0, all_begin = 0, all_end = BLOCK;
  for (int r = 0; r < ROWS; r++) {
    begin[r] = higher(tile.begin[r] - block, 0);
    end[r] = lower(tile.end[r] - block, BLOCK);
    all_begin = higher(all_begin, begin[r]);
    all_end = lower(all_end, end[r]);
    if (begin[r] >= end[r]) continue;
    lowest = lower(lowest, begin[r]);
    highest = higher(highest, end[r]);
  }
  if (lowest >= highest) return;
  Weights weights;
  score<ROWS>(tile, heads, block, lowest / 16, (highest + 15) / 16, weights);
  float peak[ROWS];
  for (int r = 0; r < ROWS; r++) peak[r] = scale_scores(begin[r], end[r], heads.scale, tile.peak[r], weights[r]);
  for (int r = 0; r < ROWS; r++) {
    if (peak[r] > tile.peak[r]) raise_peak(tile, r, heads.head_dim, peak[r]);
    tile.total[r] += soften(begin[r], end[r], peak[r], weights[r]);
  }
  all_end = higher(all_begin, all_end);
  for (int r = 0; r < ROWS; r++) gather<1>(tile, r, heads, block, begin[r], lower(end[r], all_begin), weights);
  gather<ROWS>(tile, 0, heads, block, all_begin, all_end, weights);
  for (int r = 0; r < ROWS; r++) gather<1>(tile, r, heads, block, higher(begin[r], all_end), end[r], weights);
}

template <int ROWS>
void attend_tile_of(const Tile& tile, const Heads& heads, int32_t block) {
  if (tile.rows == ROWS) return attend_tile<ROWS>(tile, heads, block);
  if constexpr (ROWS > 1) attend_tile_of<ROWS - 1>(tile, heads, block);
}

// At most BAND rows.
inline void attend_band(const Heads& heads, const float* q, ptrdiff_t q_stride, const int32_t* begin,
                        const int32_t* end, int rows, float* out, ptrdiff_t out_stride, const float* sinks) {
  float peak[BAND], total[BAND];
  int32_t first = begin[0], last = end[0];
  for (int r = 0; r < rows; r++) {
    peak[r] = sinks ? sinks[r] : -FLT_MAX;
    total[r] = sinks ? 1.0f : 0.0f;
    memset(out + r * out_stride, 0, static_cast<size_t>(heads.head_dim) * sizeof(float));
    first = lower(first, begin[r]);
    last = higher(last, end[r]);
  }
  const int tiles = (rows + TILE - 1) / TILE;
  for (int32_t block = first / BLOCK * BLOCK; block < last; block += BLOCK) {
    for (int t = 0; t < tiles; t++) {
      const int r = rows * t / tiles, next = rows * (t + 1) / tiles;
      attend_tile_of<TILE>({q + r * q_stride, q_stride, begin + r, end + r, peak + r, total + r, out + r * out_stride,
                            out_stride, next - r}, heads, block);
    }
  }
  for (int r = 0; r < rows; r++) {
    float* row = out + r * out_stride;
    for (int32_t d = 0; d < heads.head_dim; d += 16) store(row + d, div(load(row + d), splat(total[r])));
  }
}

// sinks[i] is one more score of row i, of a key without a value; null: none.
inline void attend(const Cache* cache, const float* q, ptrdiff_t q_stride, const int32_t* begin, const int32_t* end,
                   int32_t rows, int32_t head_dim, float scale, float* out, ptrdiff_t out_stride, const float* sinks) {
  for (ptrdiff_t r = 0; r < rows; r += BAND) {
    attend_band({cache, head_dim, scale}, q + r * q_stride, q_stride, begin + r, end + r,
                lower(rows - static_cast<int32_t>(r), BAND), out + r * out_stride, out_stride,
                sinks ? sinks + r : nullptr);
  }
}

inline void attend(const Cache* cache, const float* q, ptrdiff_t q_stride, const int32_t* begin, const int32_t* end,
                   int32_t rows, int32_t head_dim, float scale, float* out, ptrdiff_t out_stride) {
  attend(cache, q, q_stride, begin, end, rows, head_dim, scale, out, out_stride, nullptr);
}

inline void put_key(const Cache* cache, int32_t head_dim, int32_t position, const float* key) {
  uint16_t* to = cache->keys + static_cast<ptrdiff_t>(position / 16) * head_dim * 16 + position % 16;
  for (int32_t d = 0; d < head_dim; d += 16) {
    uint16_t halves[16];
    store_half(halves, load(key + d));
    for (int i = 0; i < 16; i++) to[(d + i) * 16] = halves[i];
  }
}

inline void put_value(const Cache* cache, int32_t head_dim, int32_t position, const float* value) {
  uint16_t* to = cache->values + static_cast<ptrdiff_t>(position) * head_dim;
  for (int32_t d = 0; d < head_dim; d += 16) store_half(to + d, load(value + d));
}

}  // namespace LDF_ISA
}  // namespace ldf
