// Drafters whose slots depend on the previous token; the anchor is the token before the first slot.
//
// DSpark: markov_w2 markov_w1[previous token] is added to a slot's logits. This reads as much memory as a head, so
// slots are not processed in sequence. One product corrects all slots, assuming the currently best previous tokens;
// slots whose previous token has changed are corrected again. The first slot is final after the first product, and at
// least one more slot after each further product. As rows are independent, the result is bit-identical to that of a
// sequential walk.
//
// DFlash 2: each candidate of a slot has a score in addition to its logit, successor[candidate] . (predecessor[previous
// token] * (selector state)). This reads a few rows of a table, so slots are processed in sequence.
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
  const int32_t *slots, *previous;  // [count] slots, and the token before each
  int32_t count;
};
static_assert(sizeof(Correction) <= MAX_ARGUMENT, "the pool copies it");

// Quantizes the rows of markov_w1 of the previous tokens into this thread's rows.
void quantize_previous_tokens(const Stage& s, const Correction& of) {
  const int rank = s.model.slots.markov_w2.k;
  for (int i = 0; i < of.count; i++) {
    dequantize_row(s.model.slots.markov_w1, of.previous[i], s.scratch.wide);
    quantize(s.scratch.wide, rank, row_from(s.scratch.rows, i, rank));
  }
}

// Writes the best tokens of some slots, given their previous tokens, into the workspace.
void correct_slots(const void* argument, Turn* turn) {
  const Correction& of = *static_cast<const Correction*>(argument);
  const Model& m = *of.model;
  const Workspace w = lay_out_workspace(m, turn->thread, turn->threads, m.workspace);
  const Stage s = stage_of(m, w, turn, of.count, 0);
  Once ready;
  run_stage(turn, [&](int chunk) {
    if (ready.first()) quantize_previous_tokens(s, of);
    Best* best = begin_best(s, chunk);
    scan_logits(s, chunk, m.slots.markov_w2, m.vocabulary, [&](int i, float* bias, int first, int count) {
      const float* logits = of.logits + (size_t)of.slots[i] * m.vocabulary + first;
      for (int c = 0; c < count; c += 16) store(bias + c, add(load_logits(logits, c, count), load(bias + c)));
      best[i] = better(best[i], best_of(bias, first, count));
    });
  });
}

// Returns the probability that the target accepts a slot.
float estimate_confidence(const Model& m, const Workspace& w, int slot, int32_t previous) {
  float *x = w.scratch.wide, probability[16];
  norm(w.x + (size_t)slot * m.hidden, m.norm, m.eps, m.hidden, x);
  float logit = dot(x, m.slots.confidence, m.hidden) + m.slots.confidence_bias;
  dequantize_row(m.slots.markov_w1, previous, x);
  logit += dot(x, m.slots.confidence + m.hidden, m.slots.markov_w1.k);
  store(probability, sigmoid(splat(logit)));
  return probability[0];
}

// Corrects the pass's best tokens until no previous token changes.
void correct_slots_repeatedly(const Model& m, const Pass& pass, Pool* pool) {
  const SlotHeads& heads = m.slots;
  const int threads = pool_size(pool);
  const Workspace w = lay_out_workspace(m, 0, threads, m.workspace);
  int32_t assumed[MAX_ROWS], slots[MAX_ROWS], previous[MAX_ROWS];
  for (int slot = 0; slot < pass.rows; slot++) assumed[slot] = -1;
  const auto previous_of = [&](int slot) {
    return slot == heads.first ? pass.ids[0] : token_of(heads, pass.best[slot - 1]);
  };
  for (;;) {
    int count = 0;
    for (int slot = heads.first; slot < pass.rows; slot++) {
      const int32_t token = previous_of(slot);
      if (token == assumed[slot]) continue;
      assumed[slot] = previous[count] = token;
      slots[count++] = slot;
    }
    if (!count) break;
    const Correction correction{&m, pass.logits, slots, previous, count};
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
  product(&selector, &s.scratch.rows, s.rows, panels.begin, panels.end, out, selector_width(s.model));
}

// Returns the best candidate of a slot, and the sum for its softmax probability among the candidates.
Best select_one(const Model& m, const Workspace& w, const Candidate* candidates, int slot, int32_t previous) {
  const SlotHeads& heads = m.slots;
  const int rank = heads.selector.n;
  float *query = w.scratch.wide, *successor = w.scratch.narrow;
  const float* selector = w.selectors + slot * selector_width(m);
  dequantize_row(heads.predecessor, previous, query);
  for (int i = 0; i < rank; i += 16) store(query + i, mul(load(query + i), load(selector + i)));
  Best best{0, -FLT_MAX, 0.0f};
  for (int i = 0; i < heads.candidates; i++) {
    dequantize_row(heads.successor, token_of(heads, candidates[i].row), successor);
    best = better(best, {i, candidates[i].logit + dot(successor, query, rank), 1.0f});
  }
  return {candidates[best.token].row, best.logit, best.total};
}

// Selects the pass's best tokens.
void select(const Model& m, const Pass& pass, int chunks) {
  const Workspace w = lay_out_workspace(m, 0, chunks, m.workspace);
  int32_t previous = pass.ids[0];
  for (int slot = m.slots.first; slot < pass.rows; slot++) {
    Candidate* candidates = candidates_of(w, m, 0, slot);
    for (int c = 1; c < chunks; c++) {
      const Candidate* more = candidates_of(w, m, c, slot);
      for (int i = 0; i < m.slots.candidates; i++) add_candidate(m, more[i], candidates);
    }
    const Best best = select_one(m, w, candidates, slot, previous);
    pass.best[slot] = best.token;
    pass.confidence[slot] = 1.0f / best.total;
    previous = token_of(m.slots, best.token);
  }
}

}  // namespace
}  // namespace LDF_ISA
}  // namespace ldf
