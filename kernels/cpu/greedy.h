// One step of greedy decoding with drafts in one call: what localdflash/engine/host_pair.py does, where the reasons stand.
// The same drafts, tokens and numbers, for the same times; microseconds instead of tens of them.
#pragma once
#include "controller.h"
#include "formats.h"
#include "kernels.h"
#include "lookup.h"

namespace ldf {

// What a step calls. A negative number of a callback ends the step with it.
struct Calls {
  // The likeliest token after each of these rows, which follow `length` cached tokens.
  int32_t (*verify)(void* self, const int32_t* ids, int32_t rows, int32_t length, int32_t* best);
  void* verifies;
  // A model's draft of at most `limit` nodes: their number. Null without a model.
  int32_t (*propose)(int32_t anchor, int32_t limit, int32_t* tokens, double* confidence);
  double (*now)();   // milliseconds
  int32_t longest;   // nodes of the model's drafts
};

struct Asked {
  int32_t anchor;
  int32_t length;    // tokens cached
  int32_t room;      // tokens that may be committed, at least 1
  int32_t drafting;  // whether the drafters may be asked
  const int32_t* ends;
  int32_t end_count;
};

struct Taken {
  int32_t tokens[MAX_ROWS];  // committed
  int32_t count;
  int32_t source, drafted;
  double draft_ms, verify_ms;
};

class Drafting {
 public:
  explicit Drafting(const Controller& known) : controller(known) {}

  // Commits tokens, a negative number of a callback otherwise.
  int32_t step(const Calls& calls, const Asked& asked, Taken* taken);

  void set_documents(const int32_t* ids, int count) {
    const std::vector<int32_t> observed(lookup.observed_ids(), lookup.observed_ids() + lookup.observed());
    lookup.start(ids, count);
    lookup.append(observed.data(), static_cast<int>(observed.size()));
  }

  // Drops the drafts whose outcome is not known yet.
  void forget_open() {
    for (Claim& claim : claims_) claim.open = false;
  }

  Lookup lookup;
  Controller controller;

 private:
  // A draft, and what was committed since it was made.
  struct Claim {
    bool open = false;
    Nodes draft;
    std::vector<int32_t> actual;
  };

  // The draft that promises most so far.
  struct Choice {
    const Nodes* draft = nullptr;
    int source = NOTHING, nodes = 0;
    double rate = 0;
  };

  int32_t choose(const Calls& calls, int32_t anchor, int limit, double* apart, Choice* best);
  void consider(const Nodes& draft, int source, Choice* best);
  double promised_by_copy() const;
  void note(const int32_t* tokens, int count);
  void judge();

  Claim claims_[SOURCES];
  Nodes copied_, modelled_;
};

// Plain decoding of a step: no drafts, nothing learned.
int32_t plain_step(const Calls& calls, const Asked& asked, Taken* taken);

// `Calls.verify` of the engine's own target.
struct EngineTarget {
  void (*forward)(const Model* model, const Pass* pass, Pool* pool);
  const Model* model;
  Pool* pool;
  float* taps;  // [MAX_ROWS][tap_count * hidden], or null
};

constexpr int32_t NOT_NUMBERS = -2, NO_TOKEN = -3;  // the model's logits; an id
int32_t verify_by_engine(void* target, const int32_t* ids, int32_t rows, int32_t length, int32_t* best);

}  // namespace ldf
