#include "greedy.h"

#include <algorithm>

namespace ldf {
namespace {

constexpr double GUESS = 0.4;

// The tokens to commit: the likeliest ones, as far as what was drafted agrees.
void accept(const Asked& asked, const int32_t* drafted, int nodes, const int32_t* best, Taken* taken) {
  taken->count = 0;
  for (int row = 0; row <= nodes; row++) {
    const int32_t token = best[row];
    taken->tokens[taken->count++] = token;
    if (row == nodes || token != drafted[row] || taken->count == asked.room) break;
    if (std::find(asked.ends, asked.ends + asked.end_count, token) != asked.ends + asked.end_count) break;
  }
}

int32_t verify(const Calls& calls, const Asked& asked, const int32_t* drafted, int nodes, Taken* taken) {
  int32_t ids[MAX_ROWS], best[MAX_ROWS];
  ids[0] = asked.anchor;
  std::copy(drafted, drafted + nodes, ids + 1);
  if (const int32_t failed = calls.verify(calls.verifies, ids, nodes + 1, asked.length, best)) return failed;
  accept(asked, drafted, nodes, best, taken);
  return 0;
}

}  // namespace

int32_t plain_step(const Calls& calls, const Asked& asked, Taken* taken) {
  const double began = calls.now();
  taken->source = NOTHING;
  taken->drafted = 0;
  taken->draft_ms = 0;
  if (const int32_t failed = verify(calls, asked, nullptr, 0, taken)) return failed;
  taken->verify_ms = calls.now() - began;
  return 0;
}

int32_t Drafting::step(const Calls& calls, const Asked& asked, Taken* taken) {
  controller.costs.follow(asked.length);
  const double began = calls.now();
  const bool looks = asked.drafting && controller.looks();
  double apart = 0;  // milliseconds of the model's draft
  Choice best;
  const int limit = std::min(asked.room, static_cast<int32_t>(MAX_ROWS)) - 1;
  if (looks && limit > 0) {
    if (const int32_t failed = choose(calls, asked.anchor, limit, &apart, &best)) return failed;
  }
  const double drafted = calls.now();
  const int32_t* nodes = best.nodes ? best.draft->tokens.data() : nullptr;
  if (const int32_t failed = verify(calls, asked, nodes, best.nodes, taken)) return failed;
  const double verified = calls.now();
  lookup.append(&asked.anchor, 1);
  lookup.append(taken->tokens, taken->count - 1);
  taken->source = best.source == AGREED ? COPIED : best.source;
  taken->drafted = best.nodes;
  taken->draft_ms = drafted - began;
  taken->verify_ms = verified - drafted;
  note(taken->tokens, taken->count);
  if (looks) judge();
  const double ms = calls.now() - began;
  if (looks) {
    controller.learn_verify(best.nodes + 1, ms - apart);
    controller.learn_looking(taken->count, ms, ms - apart - taken->verify_ms);
  } else {
    controller.learn_rest(ms);
  }
  return 0;
}

int32_t Drafting::choose(const Calls& calls, int32_t anchor, int limit, double* apart, Choice* best) {
  best->rate = controller.plain_rate();
  lookup.propose(anchor, limit, &copied_);
  bool agreed = false;
  const int asked = std::min(limit, calls.longest);
  const auto worth_asking = [&] {
    const double rate = std::max(best->rate, promised_by_copy());
    return controller.promise(MODEL, asked) > rate || controller.may_probe(MODEL, asked, rate);
  };
  if (calls.propose && worth_asking()) {
    const double began = calls.now();
    modelled_.tokens.resize(MAX_ROWS);
    modelled_.confidence.resize(MAX_ROWS);
    const int32_t count = calls.propose(anchor, limit, modelled_.tokens.data(), modelled_.confidence.data());
    if (count < 0) return count;
    modelled_.tokens.resize(std::min(count, limit));
    modelled_.confidence.resize(modelled_.tokens.size());
    *apart = calls.now() - began;
    controller.learn_draft(MODEL, *apart);
    consider(modelled_, MODEL, best);
    agreed = copied_.size() && modelled_.size() && copied_.tokens[0] == modelled_.tokens[0];
  }
  consider(copied_, agreed ? AGREED : COPIED, best);
  return 0;
}

void Drafting::consider(const Nodes& draft, int source, Choice* best) {
  if (!draft.size()) return;
  Claim& claim = claims_[source];
  if (!claim.open) {
    claim.open = true;
    claim.draft = draft;
    claim.actual.clear();
  }
  double rate;
  const int nodes = controller.best_prefix(source, draft.confidence.data(), draft.size(), &rate);
  if (nodes && rate > best->rate) *best = {&draft, source, nodes, rate};
}

double Drafting::promised_by_copy() const {
  if (!copied_.size() || copied_.confidence[0] < GUESS) return 0;
  double rate;
  return controller.best_prefix(COPIED, copied_.confidence.data(), copied_.size(), &rate) ? rate : 0;
}

void Drafting::note(const int32_t* tokens, int count) {
  for (Claim& claim : claims_) {
    if (claim.open) claim.actual.insert(claim.actual.end(), tokens, tokens + count);
  }
}

void Drafting::judge() {
  for (int source = 0; source < SOURCES; source++) {
    Claim& claim = claims_[source];
    if (!claim.open) continue;
    const Nodes& draft = claim.draft;
    const int compared = std::min(draft.size(), static_cast<int>(claim.actual.size()));
    int right = 0;
    while (right < compared && draft.tokens[right] == claim.actual[right]) right++;
    if (right == static_cast<int>(claim.actual.size()) && right < draft.size()) continue;
    controller.calibration[source].judge(draft.confidence.data(), draft.size(), right);
    claim.open = false;
  }
}

int32_t verify_by_engine(void* target, const int32_t* ids, int32_t rows, int32_t length, int32_t* best) {
  const EngineTarget& engine = *static_cast<const EngineTarget*>(target);
  const auto known = [&](int32_t id) { return id >= 0 && id < engine.model->vocabulary; };
  if (!std::all_of(ids, ids + rows, known)) return NO_TOKEN;
  int32_t numbers[MAX_ROWS];
  const Pass pass{ids, rows, length, engine.taps, nullptr, best, nullptr, numbers, 0};
  engine.forward(engine.model, &pass, engine.pool);
  return std::all_of(numbers, numbers + rows, [](int32_t sound) { return sound; }) ? 0 : NOT_NUMBERS;
}

}  // namespace ldf
