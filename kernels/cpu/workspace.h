// Memory of a pass: one block per model, divided only here.
#pragma once
#include "kernels.h"

namespace ldf {

constexpr int CHUNK = 64;  // channels of a product that are added to the residual stream at a time
constexpr int HEAD_CHUNK = 512;

struct Scratch {  // of one thread
  float* wide;    // [hidden, or head_dim or the rank of slots if that is larger]
  float* narrow;  // [MAX_ROWS][HEAD_CHUNK]
  Rows rows;      // [MAX_ROWS][hidden, or tap_count * hidden or the rank of slots]
  Rows gathered;  // [MAX_ROWS][hidden]: the rows of one expert
  float *delta, *state;   // of delta nets: [MAX_ROWS][2 * k_dim + v_dim], [k_dim][16]
  int32_t *first, *last;  // [MAX_ROWS * heads / kv_heads] range of keys that a query sees
  float* sinks;           // likewise
};

struct Candidate {
  int32_t row;  // of the head
  float logit;
};

struct Workspace {
  float* x;         // [MAX_ROWS][hidden] the residual stream
  float* queries;   // [kv_heads][rows][heads / kv_heads][head_dim]
  float* attended;  // likewise
  Rows heads;       // [MAX_ROWS][heads * head_dim, or values of delta nets]
  float* gates;     // [MAX_ROWS][likewise] of the heads' outputs
  Rows inner;       // [MAX_ROWS * max(chosen, 1)][inner]
  float* router;    // [MAX_ROWS][experts]
  Rows shared;      // [MAX_ROWS][shared]
  float* shares;    // [MAX_ROWS] weight of the shared expert
  float* best;      // [threads][MAX_ROWS][3]
  float* normed;    // [MAX_ROWS][hidden] input of a convolution
  float* changes;   // [MAX_ROWS][changes_of] of its coefficients
  Candidate* candidates;  // [threads][MAX_ROWS][candidates]
  float* selectors;       // [MAX_ROWS][selector_width] projections by the selector
  Scratch mine;
  size_t bytes;
};

namespace {  // local to each file, which has its own compiler flags

// Allocates memory from `base`; with base null it only counts.
class Cutter {
 public:
  explicit Cutter(uint8_t* base) : base_(base) {}

  template <class T>
  T* take(size_t count) {
    T* place = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return place;
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

// Returns the number of a convolution's products for a row, in whole panels.
static inline size_t changes_of(const Model& m) {
  const size_t changes = m.conv.kernel ? (size_t)2 * m.conv.kernel * (m.hidden / m.conv.group) : 0;
  return (changes + PANEL - 1) / PANEL * PANEL;
}

static inline size_t selector_width(const Model& m) { return ((size_t)m.slots.selector.n + PANEL - 1) / PANEL * PANEL; }

static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static inline Scratch cut_scratch(const Model& m, Cutter& cutter) {
  const size_t hidden = m.hidden, group = m.heads / m.kv_heads;
  const size_t rank = larger(m.slots.markov_w2.k, selector_width(m));
  const size_t widest = larger(m.fuse.n ? hidden * m.tap_count : hidden, rank);
  Scratch s;
  s.wide = cutter.take<float>(larger(widest, m.head_dim));
  s.narrow = cutter.take<float>((size_t)MAX_ROWS * HEAD_CHUNK);
  s.rows = cutter.rows(MAX_ROWS, widest);
  s.gathered = cutter.rows(m.experts ? MAX_ROWS : 0, hidden);
  s.delta = cutter.take<float>(m.delta.v_heads ? (size_t)MAX_ROWS * (2 * m.delta.k_dim + m.delta.v_dim) : 0);
  s.state = cutter.take<float>(m.delta.v_heads ? (size_t)m.delta.k_dim * 16 : 0);
  s.first = cutter.take<int32_t>(MAX_ROWS * group);
  s.last = cutter.take<int32_t>(MAX_ROWS * group);
  s.sinks = cutter.take<float>(MAX_ROWS * group);
  return s;
}

// Divides the memory as thread `thread` of `threads` sees it; with `base` null it only measures the size.
static inline Workspace cut_workspace(const Model& m, int thread, int threads, uint8_t* base) {
  Cutter cutter(base);
  const size_t across = (size_t)m.heads * m.head_dim;
  Workspace w;
  w.x = cutter.take<float>((size_t)MAX_ROWS * m.hidden);
  w.queries = cutter.take<float>(MAX_ROWS * across);
  w.attended = cutter.take<float>(MAX_ROWS * across);
  const size_t values = (size_t)m.delta.v_heads * m.delta.v_dim, widest = larger(across, values);
  w.heads = cutter.rows(MAX_ROWS, widest);
  w.gates = cutter.take<float>(m.gated || values ? MAX_ROWS * widest : 0);
  w.inner = cutter.rows((size_t)MAX_ROWS * (m.chosen ? m.chosen : 1), m.inner);
  w.router = cutter.take<float>((size_t)MAX_ROWS * m.experts);
  w.shared = cutter.rows(MAX_ROWS, m.shared);
  w.shares = cutter.take<float>(m.shared ? MAX_ROWS : 0);
  w.best = cutter.take<float>((size_t)threads * MAX_ROWS * 3);
  w.normed = cutter.take<float>(m.conv.kernel ? (size_t)MAX_ROWS * m.hidden : 0);
  w.changes = cutter.take<float>(MAX_ROWS * changes_of(m));
  w.candidates = cutter.take<Candidate>((size_t)threads * MAX_ROWS * m.slots.candidates);
  w.selectors = cutter.take<float>(MAX_ROWS * selector_width(m));
  for (int t = 0; t < threads; t++) {
    const Scratch scratch = cut_scratch(m, cutter);
    if (t == thread) w.mine = scratch;
  }
  w.bytes = cutter.used();
  return w;
}

// Returns the rows from `row` on, starting at an input that is a multiple of GROUP.
static inline Rows row_from(const Rows& rows, size_t row, size_t k, size_t input = 0) {
  const size_t at = row * k + input;
  return {rows.codes + at, rows.scales + at / GROUP, rows.sums + at / 16, rows.totals + at / GROUP};
}

}  // namespace ldf
