// Layout of a model's workspace, the memory of its passes.
#pragma once
#include "kernels.h"

namespace ldf {

constexpr int CHUNK = 64;  // product channels added to the residual stream at once
constexpr int HEAD_CHUNK = 512;  // LM head channels computed at once
constexpr int SPLIT_ROWS = 8;    // up to this many rows, threads share a head's keys; above, its queries

struct Scratch {  // memory of one thread
  float* wide;    // [hidden, or head_dim or the rank of slots if that is larger]
  float* narrow;  // [MAX_ROWS][HEAD_CHUNK]
  Rows rows;      // [MAX_ROWS][hidden, or tap_count * hidden or the rank of slots]
  Rows gathered;  // [MAX_ROWS][hidden]: the rows of one expert
  float *delta, *state;   // for delta nets: [MAX_ROWS][2 * k_dim + v_dim], [k_dim][16]
  int32_t *first, *last;  // [MAX_ROWS * heads / kv_heads] range of keys that a query sees
  float* sinks;           // [MAX_ROWS * heads / kv_heads]
};

struct Candidate {
  int32_t row;  // row of the LM head's matrix
  float logit;
};

struct Workspace {
  float* x;         // [MAX_ROWS][hidden] the residual stream
  float* queries;   // [kv_heads][rows][heads / kv_heads][head_dim]
  float* attended;  // [kv_heads][rows][heads / kv_heads][head_dim]
  float* parts;     // [kv_heads][parts_of][SPLIT_ROWS * heads / kv_heads][2 + head_dim] softmaxes of parts of the keys
  Rows heads;       // [MAX_ROWS][heads * head_dim, or values of delta nets]
  float* gates;     // [MAX_ROWS][columns of `heads`] factors of the heads' outputs, before the sigmoid
  Rows inner;       // [MAX_ROWS * max(chosen, 1)][inner]
  float* router;    // [MAX_ROWS][experts]
  Rows shared;      // [MAX_ROWS][shared]
  float* shares;    // [MAX_ROWS] weights of the shared expert
  float* best;      // [threads][MAX_ROWS], the three fields of `Best`
  float* normed;    // [MAX_ROWS][hidden] input of a convolution
  float* changes;   // [MAX_ROWS][changes_of] changes of the convolution's coefficients
  Candidate* candidates;  // [threads][MAX_ROWS][candidates]
  float* selectors;       // [MAX_ROWS][selector_width] projections by the selector
  Scratch scratch;
  size_t bytes;
};

namespace {  // local to each file, which has its own compiler flags

// Hands out consecutive pieces of the memory at `base`; with `base` null it only counts bytes.
class Allocator {
 public:
  explicit Allocator(uint8_t* base) : base_(base) {}

  template <class T>
  T* take(size_t count) {
    T* memory = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return memory;
  }

  Rows rows(size_t count, size_t k) {
    Rows rows;
    rows.codes = take<int8_t>(count * k);
    rows.scales = take<float>(count * (k / GROUP));
    rows.sums = take<int32_t>(count * (k / 16));
    rows.totals = take<float>(count * (k / GROUP));
    return rows;
  }

  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

}  // namespace

// Returns the number of coefficient changes of a row's convolutions, padded to whole panels.
static inline size_t changes_of(const Model& m) {
  const size_t changes = m.conv.kernel ? (size_t)2 * m.conv.kernel * (m.hidden / m.conv.group) : 0;
  return (changes + PANEL - 1) / PANEL * PANEL;
}

static inline size_t selector_width(const Model& m) { return ((size_t)m.slots.selector.n + PANEL - 1) / PANEL * PANEL; }

static inline size_t parts_of(const Model& m) { return ((size_t)m.capacity + PART - 1) / PART; }

static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static inline Scratch lay_out_scratch(const Model& m, Allocator& allocator) {
  const size_t hidden = m.hidden, group = m.heads / m.kv_heads;
  const size_t rank = larger(m.slots.markov_w2.k, selector_width(m));
  const size_t widest = larger(m.fuse.n ? hidden * m.tap_count : hidden, rank);
  Scratch s;
  s.wide = allocator.take<float>(larger(widest, m.head_dim));
  s.narrow = allocator.take<float>((size_t)MAX_ROWS * HEAD_CHUNK);
  s.rows = allocator.rows(MAX_ROWS, widest);
  s.gathered = allocator.rows(m.experts ? MAX_ROWS : 0, hidden);
  s.delta = allocator.take<float>(m.delta.v_heads ? (size_t)MAX_ROWS * (2 * m.delta.k_dim + m.delta.v_dim) : 0);
  s.state = allocator.take<float>(m.delta.v_heads ? (size_t)m.delta.k_dim * 16 : 0);
  s.first = allocator.take<int32_t>(MAX_ROWS * group);
  s.last = allocator.take<int32_t>(MAX_ROWS * group);
  s.sinks = allocator.take<float>(MAX_ROWS * group);
  return s;
}

// Lays out the memory for thread `thread` of `threads`; with `base` null it only measures the size.
static inline Workspace lay_out_workspace(const Model& m, int thread, int threads, uint8_t* base) {
  Allocator allocator(base);
  const size_t across = (size_t)m.heads * m.head_dim;
  Workspace w;
  w.x = allocator.take<float>((size_t)MAX_ROWS * m.hidden);
  w.queries = allocator.take<float>(MAX_ROWS * across);
  w.attended = allocator.take<float>(MAX_ROWS * across);
  w.parts = allocator.take<float>(parts_of(m) * SPLIT_ROWS * (2 * m.heads + across));
  const size_t values = (size_t)m.delta.v_heads * m.delta.v_dim, widest = larger(across, values);
  w.heads = allocator.rows(MAX_ROWS, widest);
  w.gates = allocator.take<float>(m.gated || values ? MAX_ROWS * widest : 0);
  w.inner = allocator.rows((size_t)MAX_ROWS * (m.chosen ? m.chosen : 1), m.inner);
  w.router = allocator.take<float>((size_t)MAX_ROWS * m.experts);
  w.shared = allocator.rows(MAX_ROWS, m.shared);
  w.shares = allocator.take<float>(m.shared ? MAX_ROWS : 0);
  w.best = allocator.take<float>((size_t)threads * MAX_ROWS * 3);
  w.normed = allocator.take<float>(m.conv.kernel ? (size_t)MAX_ROWS * m.hidden : 0);
  w.changes = allocator.take<float>(MAX_ROWS * changes_of(m));
  w.candidates = allocator.take<Candidate>((size_t)threads * MAX_ROWS * m.slots.candidates);
  w.selectors = allocator.take<float>(MAX_ROWS * selector_width(m));
  for (int t = 0; t < threads; t++) {
    const Scratch scratch = lay_out_scratch(m, allocator);
    if (t == thread) w.scratch = scratch;
  }
  w.bytes = allocator.used();
  return w;
}

// Returns the rows from `row` on, from column `input` on, a multiple of GROUP.
static inline Rows row_from(const Rows& rows, size_t row, size_t k, size_t input = 0) {
  const size_t at = row * k + input;
  return {rows.codes + at, rows.scales + at / GROUP, rows.sums + at / 16, rows.totals + at / GROUP};
}

}  // namespace ldf
