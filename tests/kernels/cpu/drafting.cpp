// Steps of greedy decoding in a made-up world, for a sanitizer to watch: documents, prompts, steps of any width, going
// back. What is committed must be what the world says, whatever was drafted. One line; the exit status is 0 if it is.
#include <stdio.h>

#include <random>
#include <vector>

#include "greedy.h"

namespace {

using namespace ldf;

std::mt19937 chance(1);
std::vector<int32_t> text;  // the sequence, its anchor last
double clock_ms = 0;

int below(int count) { return static_cast<int>(chance() % count); }

int32_t following(int32_t before, int32_t last) { return (before * 7 + last * 3 + 1) % 11; }

// The world's token after some ids of the sequence and these.
int32_t verify(void*, const int32_t* ids, int32_t rows, int32_t length, int32_t* best) {
  clock_ms += 1 + below(rows);
  for (int row = 0; row < rows; row++) {
    best[row] = following(row ? ids[row - 1] : length ? text[length - 1] : 0, ids[row]);
  }
  return below(500) ? 0 : NOT_NUMBERS;
}

int32_t propose(int32_t anchor, int32_t limit, int32_t* tokens, double* confidence) {
  clock_ms += 0.5;
  int32_t before = text.size() > 1 ? text[text.size() - 2] : 0, last = anchor;
  for (int node = 0; node < limit && node < 7; node++) {
    tokens[node] = below(4) ? following(before, last) : below(11);
    confidence[node] = below(100) / 90.0 - (below(50) ? 0 : NAN);
    before = last;
    last = tokens[node];
  }
  return limit < 7 ? limit : 7;
}

double now() { return clock_ms; }

}  // namespace

int main() {
  const std::vector<double> costs(33, 2.0), growth(33, 1e-4);
  const double drafts[SOURCES] = {0, 0, 0.5, 0};
  Drafting drafting(Controller(VerifyCosts(costs.data(), growth.data(), 33), drafts));
  const Calls calls{verify, nullptr, propose, now, 7};
  int wrong = 0, drafted = 0;
  for (int request = 0; request < 300; request++) {
    std::vector<int32_t> documents(below(60));
    for (int32_t& token : documents) token = below(12) - 1;
    drafting.set_documents(documents.data(), static_cast<int>(documents.size()));
    text.resize(text.empty() ? 0 : below(static_cast<int>(text.size())));
    drafting.lookup.rollback(static_cast<int>(text.size()));
    drafting.forget_open();
    for (int more = 1 + below(40); more > 0; more--) text.push_back(below(11));
    drafting.lookup.append(text.data() + drafting.lookup.observed(),
                           static_cast<int>(text.size()) - 1 - drafting.lookup.observed());
    const std::vector<int32_t> ends(below(3), below(11));
    for (int step = 0; step < 100; step++) {
      const int length = static_cast<int>(text.size()) - 1;
      const Asked asked{text.back(), length, 1 + below(70), below(9) > 0, ends.data(), static_cast<int>(ends.size())};
      Taken taken;
      if (drafting.step(calls, asked, &taken)) {  // a failure drops the sequence
        text.clear();
        drafting.lookup.rollback(0);
        break;
      }
      for (int i = 0; i < taken.count; i++) {
        wrong += taken.tokens[i] != following(text.size() > 1 ? text[text.size() - 2] : 0, text.back());
        text.push_back(taken.tokens[i]);
      }
      wrong += taken.count < 1 || taken.count > asked.room || taken.count > taken.drafted + 1;
      drafted += taken.drafted;
    }
  }
  printf("drafting: %s\n", wrong || !drafted ? "wrong tokens" : "ok");
  return wrong || !drafted;
}
