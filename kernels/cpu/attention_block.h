// What all forms of keys and values share: blocks of keys, and the weights that a tile of rows gives to the keys of one.
//
// A form (attention_f16.h, attention_int8.h) has
//
//   Queries(q, q_stride, rows, head_dim, scale)   rows as it multiplies them; `scale(r)` is what a score of row r lacks
//   score<ROWS>(queries, r, heads, block, first, last, scores)   rows r, r + 1, ... with strips `first` up to `last`
//   gather<ROWS>(begin, end, heads, block, weights, out, stride)   out += weights values, a row's keys begin up to end
//   put_key, put_value   one position
#pragma once
#include "formats.h"
#include "simd.h"

namespace ldf {
namespace LDF_ISA {

constexpr int BLOCK = 64;     // keys
constexpr int STRIP = 16;     // keys of a score's lanes
constexpr int BAND = 64;      // rows that pass over the keys together
constexpr int LARGEST = 512;  // head_dim

struct Heads {
  const Cache& cache;
  int32_t head_dim;
};

using Weights = float[TILE][BLOCK];  // scores, then their exponentials

// How many strips, or sixteens of dimensions, so many rows meet at once: enough sums to keep the multipliers busy, and no
// more than registers hold beside what is multiplied.
constexpr int at_once(int rows) { return rows == 1 || rows * 4 <= TILE ? 4 : rows * 3 <= TILE ? 2 : 1; }

// Asks for what the next block has in the place of this one, load `i` of half a cache line. Few rows wait for memory; for
// many, it comes in time. Not into the nearest cache, which two blocks would fill.
template <int ROWS>
inline void ask_for_next(const void* place, ptrdiff_t block_bytes, ptrdiff_t i) {
  if constexpr (2 * ROWS <= TILE) {
    if (i % 2 == 0) __builtin_prefetch(static_cast<const uint8_t*>(place) + block_bytes, 0, 2);
  }
}

inline int32_t lower(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t higher(int32_t a, int32_t b) { return a > b ? a : b; }

}  // namespace LDF_ISA
}  // namespace ldf
