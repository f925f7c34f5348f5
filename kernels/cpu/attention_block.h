// Definitions that both KV cache formats share: blocks of keys, and the weights of a tile of rows for the keys of a
// block.
//
// A format (attention_f16.h, attention_codes.h) has
//
//   Queries(q, q_stride, rows, head_dim, scale)   rows in the format's type; `scale(r)` is the factor of row r's scores
//   score<ROWS>(queries, r, head, block, first, last, scores)   rows r, r + 1, ... times keys, strips `first` to `last`
//   gather<ROWS>(begin, end, head, block, weights, out, stride)   out += weights values, over keys begin up to end
//   restore(out, head_dim)   turns a row's sum of stored values into that of the values
//   put_key, put_value   store one position
#pragma once
#include "formats.h"
#include "simd.h"

namespace ldf {
namespace LDF_ISA {

constexpr int BLOCK = 64;            // keys
constexpr int STRIP = 16;            // keys in the lanes of a score
constexpr int BAND = 64;             // maximum rows processed per pass over the keys
constexpr int BAND_SIZE = 64 * 256;  // maximum rows times head_dim of a band, which is on the stack
constexpr int LARGEST = 512;         // maximum head_dim

struct KvHead {  // one key-value head and its cache
  const Cache& cache;
  int32_t head_dim;
};

using Weights = float[TILE][BLOCK];  // scores, then their exponentials

// Returns how many strips, or groups of 16 dimensions, to process at once: enough sums to keep the multipliers busy,
// and few enough to stay in registers with their operands.
constexpr int unroll_count(int rows) { return rows == 1 || rows * 4 <= TILE ? 4 : rows * 3 <= TILE ? 2 : 1; }

// Prefetches the data of the next block at the position of a load, once for each cache line: `offset` counts the bytes
// that were loaded before. The data go to the second-level cache, since two blocks would fill the first.
inline void prefetch_next_block(const void* address, ptrdiff_t block_bytes, ptrdiff_t offset) {
  if (offset % 64 == 0) __builtin_prefetch(static_cast<const uint8_t*>(address) + block_bytes, 0, 2);
}

inline int32_t lower(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t higher(int32_t a, int32_t b) { return a > b ? a : b; }

// Returns the rows of a band.
inline int band_of(int32_t rows, int32_t head_dim) { return lower(rows, lower(BAND, BAND_SIZE / head_dim)); }

}  // namespace LDF_ISA
}  // namespace ldf
