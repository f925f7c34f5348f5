// What Python calls, by name.
#include <string.h>

#include <algorithm>
#include <chrono>

#include "cpus.h"
#include "greedy.h"
#include "kernels.h"
#include "workspace.h"

#define LDF_API extern "C" __attribute__((visibility("default")))

namespace {

using ldf::Kernels;

// Those that were compiled (see sources.py), from the best to the one that runs anywhere.
const Kernels* const TABLES[] = {LDF_TABLES};

}  // namespace

// The functions for an instruction set; null where it is unknown or this processor has it not.
LDF_API const Kernels* ldf_kernels(const char* name) {
  for (const Kernels* table : TABLES) {
    if (!strcmp(table->name, name)) return ldf::cpu_has(name) ? table : nullptr;
  }
  return nullptr;
}

// The n-th best instruction set of this processor; null after the last.
LDF_API const char* ldf_instruction_set(int n) {
  for (const Kernels* table : TABLES) {
    if (ldf::cpu_has(table->name) && n-- == 0) return table->name;
  }
  return nullptr;
}

// Sizes of the structs that are handed over, to tell a library that was built from other sources.
LDF_API size_t ldf_layout(int which) {
  const size_t sizes[] = {sizeof(ldf::Matrix), sizeof(ldf::Rows), sizeof(ldf::Layer),   sizeof(ldf::Model),
                          sizeof(ldf::Pass),   sizeof(ldf::Kernels), sizeof(ldf::DeltaNet)};
  return which >= 0 && which < 7 ? sizes[which] : 0;
}

LDF_API size_t ldf_workspace_bytes(const ldf::Model* model, int threads) {
  return ldf::cut_workspace(*model, 0, threads, nullptr).bytes;
}

LDF_API ldf::Pool* ldf_pool_new(int threads, const int32_t* cpus, int count) {
  return ldf::pool_new(threads, cpus, count);
}

LDF_API void ldf_pool_delete(ldf::Pool* pool) { ldf::pool_delete(pool); }

// Drafting: the measured costs by rows [count], what each costs more for a token of context, and those of drafts.
LDF_API ldf::Drafting* ldf_drafting_new(const double* verify_ms, const double* growth, int32_t count,
                                        const double* draft_ms) {
  return new ldf::Drafting(ldf::Controller(ldf::VerifyCosts(verify_ms, growth, count), draft_ms));
}

LDF_API void ldf_drafting_delete(ldf::Drafting* drafting) { delete drafting; }

LDF_API void ldf_set_documents(ldf::Drafting* drafting, const int32_t* ids, int32_t count) {
  drafting->set_documents(ids, count);
}

LDF_API void ldf_observe(ldf::Drafting* drafting, const int32_t* ids, int32_t count) {
  drafting->lookup.append(ids, count);
}

LDF_API void ldf_rollback(ldf::Drafting* drafting, int32_t length) {
  drafting->lookup.rollback(length);
  drafting->forget_open();
}

// The number of nodes [64].
LDF_API int32_t ldf_propose(ldf::Drafting* drafting, int32_t anchor, int32_t limit, int32_t* tokens,
                            double* confidence) {
  ldf::Nodes nodes;
  drafting->lookup.propose(anchor, limit, &nodes);
  std::copy(nodes.tokens.begin(), nodes.tokens.end(), tokens);
  std::copy(nodes.confidence.begin(), nodes.confidence.end(), confidence);
  return nodes.size();
}

LDF_API void ldf_follow(ldf::Drafting* drafting, int32_t length) { drafting->controller.costs.follow(length); }

LDF_API double ldf_verify_ms(ldf::Drafting* drafting, int32_t rows) { return drafting->controller.costs.ms(rows); }

LDF_API double ldf_draft_ms(ldf::Drafting* drafting, int32_t source) { return drafting->controller.draft_ms[source]; }

LDF_API int32_t ldf_best_prefix(ldf::Drafting* drafting, int32_t source, const double* confidence, int32_t count,
                                double* rate) {
  return drafting->controller.best_prefix(source, confidence, count, rate);
}

LDF_API int32_t ldf_looks(ldf::Drafting* drafting) { return drafting->controller.looks(); }

LDF_API double ldf_promise(ldf::Drafting* drafting, int32_t source, int32_t limit) {
  return drafting->controller.promise(source, limit);
}

LDF_API int32_t ldf_may_probe(ldf::Drafting* drafting, int32_t source, int32_t limit, double rate) {
  return drafting->controller.may_probe(source, limit, rate);
}

LDF_API void ldf_learn_verify(ldf::Drafting* drafting, int32_t rows, double ms) {
  drafting->controller.learn_verify(rows, ms);
}

LDF_API void ldf_learn_looking(ldf::Drafting* drafting, int32_t tokens, double ms, double looking_ms) {
  drafting->controller.learn_looking(tokens, ms, looking_ms);
}

LDF_API void ldf_learn_rest(ldf::Drafting* drafting, double ms) { drafting->controller.learn_rest(ms); }

LDF_API void ldf_learn_draft(ldf::Drafting* drafting, int32_t source, double ms) {
  drafting->controller.learn_draft(source, ms);
}

LDF_API void ldf_judge(ldf::Drafting* drafting, int32_t source, const double* confidence, int32_t count,
                       int32_t right) {
  drafting->controller.calibration[source].judge(confidence, count, right);
}

// A step, with drafting null a plain one; a negative number says why there is none.
LDF_API int32_t ldf_step(ldf::Drafting* drafting, const ldf::Calls* calls, const ldf::Asked* asked,
                         ldf::Taken* taken) {
  return drafting ? drafting->step(*calls, *asked, taken) : ldf::plain_step(*calls, *asked, taken);
}

LDF_API int32_t ldf_verify_by_engine(void* target, const int32_t* ids, int32_t rows, int32_t length, int32_t* best) {
  return ldf::verify_by_engine(target, ids, rows, length, best);
}

// Milliseconds of a clock that only ever goes forward.
LDF_API double ldf_now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
