// The best tokens of a row by logit, for the selector of DFlash 2. Ties go to the lowest token, so the result does not
// depend on how the tokens are cut into chunks.
#pragma once
#include "rows.h"
#include "workspace.h"

namespace ldf {
namespace LDF_ISA {
namespace {

// Returns the candidates that a chunk found for a row.
Candidate* candidates_of(const Workspace& w, const Model& m, int chunk, int row) {
  return w.candidates + ((size_t)chunk * MAX_ROWS + row) * m.slots.candidates;
}

void begin_candidates(const Model& m, Candidate* best) {
  for (int i = 0; i < m.slots.candidates; i++) best[i] = {0, -FLT_MAX};  // no token yet
}

// Adds a candidate whose token id is greater than those of all earlier candidates.
void add_candidate(const Model& m, Candidate fresh, Candidate* best) {
  int at = m.slots.candidates;
  for (; at > 0 && fresh.logit > best[at - 1].logit; at--) {
    if (at < m.slots.candidates) best[at] = best[at - 1];
  }
  if (at < m.slots.candidates) best[at] = fresh;
}

// Adds the tokens first, first + 1, ... with logits [count].
void add_candidates(const Model& m, const float* logits, int first, int count, Candidate* best) {
  const float& least = best[m.slots.candidates - 1].logit;
  for (int i = 0; i < count; i += 16) {
    const Lanes lanes = max(load_logits(logits, i, count), splat(-FLT_MAX));  // NaN never qualifies
    if (!(maximum(lanes) > least)) continue;
    for (int j = i; j < i + 16 && j < count; j++) {
      if (logits[j] > least) add_candidate(m, {first + j, logits[j]}, best);
    }
  }
}

}  // namespace
}  // namespace LDF_ISA
}  // namespace ldf
