// Drafters whose slots depend on the token before them; the anchor stands before the first one.
//
// DSpark: to a slot's logits is added markov_w2 markov_w1[token before]. That reads as much memory as a head, so slots are
// not taken one after the other: all are corrected in one product, each behind the token that is likeliest before it so
// far, and then those whose token before has become another. The first slot is right at once, and one more with each
// product; as a row never sees its neighbours, the end is the same, to the bit.
//
// DFlash 2: of a slot's candidates each has a score beside its logit, successor[it] . (predecessor[token before] *
// (selector state)). These are a few rows of a table, so the caller takes one slot after the other.
#pragma once
#include "stages.h"

namespace ldf {
namespace LDF_ISA {
namespace {

int32_t token_of(const SlotHeads& slots, int32_t row) { return slots.tokens ? slots.tokens[row] : row; }

// DSpark

struct Correction {
  const Model* model;
  const float* logits;            // [rows][vocabulary] before it
  const int32_t *slots, *before;  // [count], and the tokens before them
  int32_t count;
};
static_assert(sizeof(Correction) <= MAX_ARGUMENT, "the pool copies it");

// What markov_w1 has for the tokens before, quantized, in this thread's own rows.
void read_before(const Stage& s, const Correction& of) {
  const int rank = s.model.slots.markov_w2.k;
  for (int i = 0; i < of.count; i++) {
    weight_row(s.model.slots.markov_w1, of.before[i], s.mine.wide);
    quantize(s.mine.wide, rank, row_from(s.mine.rows, i, rank));
  }
}

// The best of some slots behind their tokens, in the workspace.
void correct_slots(const void* argument, Turn* turn) {
  const Correction& of = *static_cast<const Correction*>(argument);
  const Model& m = *of.model;
  const Workspace w = cut_workspace(m, turn->thread, turn->threads, m.workspace);
  const Stage s{m, w, w.mine, turn, of.count, 0};
  Once ready;
  together(turn, [&](int chunk) {
    if (ready.first()) read_before(s, of);
    Best* best = begin_best(s, chunk);
    look_through(s, chunk, m.slots.markov_w2, m.vocabulary, [&](int i, float* bias, int first, int count) {
      const float* logits = of.logits + (size_t)of.slots[i] * m.vocabulary + first;
      for (int c = 0; c < count; c += 16) store(bias + c, add(load_logits(logits, c, count), load(bias + c)));
      best[i] = better(best[i], best_of(bias, first, count));
    });
  });
}

// How likely it is that the target agrees with a slot.
float judge(const Model& m, const Workspace& w, int slot, int32_t before) {
  float *x = w.mine.wide, probability[16];
  norm(w.x + (size_t)slot * m.hidden, m.norm, m.eps, m.hidden, x);
  float logit = dot(x, m.slots.confidence, m.hidden) + m.slots.confidence_bias;
  weight_row(m.slots.markov_w1, before, x);
  logit += dot(x, m.slots.confidence + m.hidden, m.slots.markov_w1.k);
  store(probability, sigmoid(splat(logit)));
  return probability[0];
}

// The pass's best tokens, corrected.
void correct(const Model& m, const Pass& pass, Pool* pool) {
  const SlotHeads& heads = m.slots;
  const int threads = pool_size(pool);
  const Workspace w = cut_workspace(m, 0, threads, m.workspace);
  int32_t assumed[MAX_ROWS], slots[MAX_ROWS], before[MAX_ROWS];
  for (int slot = 0; slot < pass.rows; slot++) assumed[slot] = -1;
  const auto before_of = [&](int slot) {
    return slot == heads.first ? pass.ids[0] : token_of(heads, pass.best[slot - 1]);
  };
  for (;;) {
    int count = 0;
    for (int slot = heads.first; slot < pass.rows; slot++) {
      const int32_t token = before_of(slot);
      if (token == assumed[slot]) continue;
      assumed[slot] = before[count] = token;
      slots[count++] = slot;
    }
    if (!count) break;
    const Correction correction{&m, pass.logits, slots, before, count};
    pool_run(pool, correct_slots, &correction, sizeof correction);
    for (int i = 0; i < count; i++) {
      const Best best = best_of_chunks(w, threads, i);
      pass.best[slots[i]] = best.token;
      pass.confidence[slots[i]] = 1.0f / best.total;
    }
  }
  for (int slot = heads.first; heads.confidence && slot < pass.rows; slot++) {
    pass.confidence[slot] = judge(m, w, slot, assumed[slot]);
  }
}

// DFlash 2

// What the selector makes of this thread's normed rows, a chunk of it.
void project_selectors(const Stage& s, int chunk) {
  const Matrix& selector = s.model.slots.selector;
  const Share panels = share(panels_of(selector), chunk, s);
  float* out = s.w.selectors + (size_t)panels.begin * PANEL;
  product(&selector, &s.mine.rows, s.rows, panels.begin, panels.end, out, selector_width(s.model));
}

// The best candidate of a slot, and its softmax probability among them.
Best select_one(const Model& m, const Workspace& w, const Candidate* candidates, int slot, int32_t before) {
  const SlotHeads& heads = m.slots;
  const int rank = heads.selector.n;
  float *wanted = w.mine.wide, *successor = w.mine.narrow;
  const float* selector = w.selectors + slot * selector_width(m);
  weight_row(heads.predecessor, before, wanted);
  for (int i = 0; i < rank; i += 16) store(wanted + i, mul(load(wanted + i), load(selector + i)));
  Best best{0, -FLT_MAX, 0.0f};
  for (int i = 0; i < heads.candidates; i++) {
    weight_row(heads.successor, token_of(heads, candidates[i].row), successor);
    best = better(best, {i, candidates[i].logit + dot(successor, wanted, rank), 1.0f});
  }
  return {candidates[best.token].row, best.logit, best.total};
}

// The pass's best tokens, by the selector.
void select(const Model& m, const Pass& pass, int chunks) {
  const Workspace w = cut_workspace(m, 0, chunks, m.workspace);
  int32_t before = pass.ids[0];
  for (int slot = m.slots.first; slot < pass.rows; slot++) {
    Candidate* candidates = candidates_of(w, m, 0, slot);
    for (int c = 1; c < chunks; c++) {
      const Candidate* more = candidates_of(w, m, c, slot);
      for (int i = 0; i < m.slots.candidates; i++) add_candidate(m, more[i], candidates);
    }
    const Best best = select_one(m, w, candidates, slot, before);
    pass.best[slot] = best.token;
    pass.confidence[slot] = 1.0f / best.total;
    before = token_of(m.slots, best.token);
  }
}

}  // namespace
}  // namespace LDF_ISA
}  // namespace ldf
