// Drafters whose slots depend on the token before them; the anchor precedes the first slot.
//
// DSpark: markov_w2 markov_w1[token before] is added to a slot's logits. This reads as much memory as a head, so slots
// are not processed in sequence. One product corrects all slots, each given the currently best token before it; then
// those whose token before has changed are corrected again. The first slot is right at once, and at least one more
// after each product. As rows are independent, the result is bit-identical to that of a sequential walk.
//
// DFlash 2: each candidate of a slot has a score in addition to its logit, successor[candidate] . (predecessor[token
// before] * (selector state)). These are a few rows of a table, so the caller processes slots in sequence.
#pragma once
#include "stages.h"

namespace ldf {
namespace LDF_ISA {
namespace {

int32_t token_of(const SlotHeads& slots, int32_t row) { return slots.tokens ? slots.tokens[row] : row; }

// DSpark

struct Correction {
  const Model* model;
  const float* logits;            // [rows][vocabulary] before the correction
  const int32_t *slots, *before;  // [count], and the tokens before them
  int32_t count;
};
static_assert(sizeof(Correction) <= MAX_ARGUMENT, "the pool copies it");

// Quantizes the rows of markov_w1 of the tokens before into this thread's rows.
void read_before(const Stage& s, const Correction& of) {
  const int rank = s.model.slots.markov_w2.k;
  for (int i = 0; i < of.count; i++) {
    weight_row(s.model.slots.markov_w1, of.before[i], s.mine.wide);
    quantize(s.mine.wide, rank, row_from(s.mine.rows, i, rank));
  }
}

// Finds the best tokens of some slots, given the tokens before them, in the workspace.
void correct_slots(const void* argument, Turn* turn) {
  const Correction& of = *static_cast<const Correction*>(argument);
  const Model& m = *of.model;
  const Workspace w = cut_workspace(m, turn->thread, turn->threads, m.workspace);
  const Stage s{m, w, w.mine, turn, of.count, 0};
  Once ready;
  together(turn, [&](int chunk) {
    if (ready.first()) read_before(s, of);
    Best* best = begin_best(s, chunk);
    scan_logits(s, chunk, m.slots.markov_w2, m.vocabulary, [&](int i, float* bias, int first, int count) {
      const float* logits = of.logits + (size_t)of.slots[i] * m.vocabulary + first;
      for (int c = 0; c < count; c += 16) store(bias + c, add(load_logits(logits, c, count), load(bias + c)));
      best[i] = better(best[i], best_of(bias, first, count));
    });
  });
}

// Returns the probability that the target accepts a slot.
float estimate_confidence(const Model& m, const Workspace& w, int slot, int32_t before) {
  float *x = w.mine.wide, probability[16];
  norm(w.x + (size_t)slot * m.hidden, m.norm, m.eps, m.hidden, x);
  float logit = dot(x, m.slots.confidence, m.hidden) + m.slots.confidence_bias;
  weight_row(m.slots.markov_w1, before, x);
  logit += dot(x, m.slots.confidence + m.hidden, m.slots.markov_w1.k);
  store(probability, sigmoid(splat(logit)));
  return probability[0];
}

// Corrects the pass's best tokens.
void correct_slots_repeatedly(const Model& m, const Pass& pass, Pool* pool) {
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
    pass.confidence[slot] = estimate_confidence(m, w, slot, assumed[slot]);
  }
}

// DFlash 2

// Projects this thread's normed rows with a chunk of the selector.
void project_selectors(const Stage& s, int chunk) {
  const Matrix& selector = s.model.slots.selector;
  const Share panels = share(panels_of(selector), chunk, s);
  float* out = s.w.selectors + (size_t)panels.begin * PANEL;
  product(&selector, &s.mine.rows, s.rows, panels.begin, panels.end, out, selector_width(s.model));
}

// Returns the best candidate of a slot, and the sum for its softmax probability among the candidates.
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

// Selects the pass's best tokens.
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
