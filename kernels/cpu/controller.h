// How much to draft, as localdflash/engine/{controller,costs,worth}.py have it, where the reasons stand: the same
// decisions for the same measurements, to the last bit of every number. Times are milliseconds.
#pragma once
#include <math.h>
#include <stdint.h>

#include <algorithm>
#include <vector>

#include "lookup.h"

namespace ldf {

// Where a draft comes from. What begins as the model's draft does is counted apart from other copies.
enum Source : int32_t { NOTHING = -1, COPIED = 0, AGREED = 1, MODEL = 2, GRAMMAR = 3, SOURCES = 4 };

class VerifyCosts {
 public:
  VerifyCosts(const double* measured, const double* growth, int count)
      : shape(measured, measured + count), short_(shape), growth_(growth, growth + count), recent_(count) {}

  void follow(int length) {
    if (abs(length - length_) < STRIDE) return;
    length_ = length;
    for (size_t rows = 0; rows < shape.size(); rows++) shape[rows] = short_[rows] + growth_[rows] * length;
  }

  double ms(int rows) const { return shape[std::min(rows, static_cast<int>(shape.size()) - 1)] * pace; }

  void learn(int rows, double ms_taken) {
    if (rows >= static_cast<int>(shape.size())) return;
    const double expected = ms(rows);
    Timings& recent = recent_[rows];
    if (!recent.some) recent = {true, expected, expected};
    double three[] = {recent.older, recent.old, ms_taken};
    recent = {true, recent.old, ms_taken};
    std::sort(three, three + 3);
    const double ratio = std::min(std::max(three[1] / expected, 1 / MOST), MOST);
    const double own = pow(ratio, OWN);
    shape[rows] *= own;
    short_[rows] *= own;
    growth_[rows] *= own;
    pace *= pow(ratio, SHARED);
  }

  std::vector<double> shape;
  double pace = 1.0;

 private:
  static constexpr double OWN = 0.2, SHARED = 0.2, MOST = 2.0;
  static constexpr int STRIDE = 128;

  struct Timings {
    bool some = false;
    double older = 0, old = 0;
  };

  std::vector<double> short_, growth_;
  std::vector<Timings> recent_;  // the two newest of each width
  int length_ = 0;
};

class Worth {
 public:
  bool looks(double plain_ms) {
    if (cost_ < CHEAP * plain_ms) return true;
    const bool better = streak_ > 0 || looking_.rate() >= resting_.rate();
    if (++since_ < (better ? REST : LOOK)) return better;
    since_ = 0;
    return !better;
  }

  void looked(int tokens, double ms, double looking_ms) {
    looking_.count(tokens, ms);
    const bool paid = tokens > CLEARLY * resting_.rate() * ms;
    streak_ = paid ? STREAK : std::max(streak_ - 1, 0);
    cost_ += (1 - MEMORY) * (looking_ms - cost_);
  }

  void rested(double ms) { resting_.count(1, ms); }

 private:
  static constexpr double MEMORY = 0.9, CLEARLY = 1.2, CHEAP = 0.03;
  static constexpr int LOOK = 16, REST = 32, STREAK = 4;

  struct Way {
    double tokens = 0, ms = 0;

    void count(int more, double taken) {
      if (tokens) taken = std::min(taken, 2 * more * ms / tokens);
      tokens = tokens * MEMORY + more;
      ms = ms * MEMORY + taken;
    }

    double rate() const { return ms ? tokens / ms : 0.0; }
  };

  Way looking_, resting_;
  int since_ = 0, streak_ = 0;
  double cost_ = 0;
};

class Calibration {
 public:
  Calibration() {
    for (int b = 0; b < BINS; b++) {
      right_[b] = PRIOR * (b + 0.5) / BINS;
      judged_[b] = PRIOR;
    }
  }

  double acceptance(double confidence) const {
    const int b = bin(confidence);
    return right_[b] / judged_[b];
  }

  void judge(const double* confidence, int count, int right) {
    drafts++;
    for (int i = 0; i < std::min(right + 1, count); i++) {
      const int b = bin(confidence[i]);
      right_[b] = right_[b] * MEMORY + (i < right);
      judged_[b] = judged_[b] * MEMORY + 1.0;
    }
    const double weight = std::max(SURPRISE, 1.0 / (drafts + 1));
    const int counted = std::min(count, SLOTS);
    if (static_cast<int>(survival.size()) < counted) survival.resize(counted, 0.0);
    for (int i = 0; i < counted; i++) survival[i] += weight * ((i < right) - survival[i]);
  }

  std::vector<double> survival;
  int drafts = 0;

 private:
  static constexpr int BINS = 12, SLOTS = 32;
  static constexpr double PRIOR = 6.0, MEMORY = 0.995, SURPRISE = 0.1;

  static int bin(double confidence) {
    if (!(confidence > 0.0)) return 0;
    return std::min(static_cast<int>(std::min(confidence, 1.0) * BINS), BINS - 1);
  }

  double right_[BINS], judged_[BINS];
};

class Controller {
 public:
  Controller(const VerifyCosts& known, const double* drafting) : costs(known) {
    for (int source = 0; source < SOURCES; source++) draft_ms[source] = drafting[source];
  }

  double plain_rate() const { return 1.0 / costs.ms(1); }

  bool looks() { return worth_.looks(costs.ms(1)); }

  // How many nodes of a draft to verify; the tokens a millisecond expected from that.
  int best_prefix(int source, const double* confidence, int count, double* rate) const {
    const Calibration& known = calibration[source];
    const double drafting = draft_ms[source], plain = plain_rate(), floor = plain * MARGIN;
    int nodes = 0, left = count;
    double best = 0.0, alive = 1.0, expected = 1.0;
    *rate = plain;
    const int widths = static_cast<int>(costs.shape.size());
    for (int i = 0; i < count && i + 2 < widths; i++) {
      alive *= known.acceptance(confidence[i]);
      expected += alive;
      left--;
      const double cost = costs.shape[i + 2] * costs.pace;
      if (expected > floor * cost && expected > best * (cost + drafting)) {
        nodes = i + 1;
        best = expected / (cost + drafting);
        *rate = expected / cost;
      }
      const double hoped = expected + alive * left;
      if (hoped <= floor * cost || hoped <= best * (cost + drafting)) break;
    }
    return nodes;
  }

  // The best tokens a millisecond to expect of a drafter before it is asked, its own cost included.
  double promise(int source, int limit) const {
    const std::vector<double>& survival = calibration[source].survival;
    const double drafting = draft_ms[source];
    double expected = 1.0, best = 0.0;
    const int count = std::min({limit, static_cast<int>(survival.size()), static_cast<int>(costs.shape.size()) - 2});
    for (int i = 0; i < count; i++) {
      expected += survival[i];
      const double cost = costs.shape[i + 2] * costs.pace;
      if (expected > best * (cost + drafting)) best = expected / (cost + drafting);
    }
    return best;
  }

  bool may_probe(int source, int limit, double rate) {
    const double drafting = draft_ms[source];
    if (credit_ < drafting) return false;
    double alive = 1.0, expected = 1.0;
    for (int i = 2; i < limit + 2 && i < static_cast<int>(costs.shape.size()); i++) {
      alive *= HOPE;
      expected += alive;
      if (expected > rate * (costs.shape[i] * costs.pace + drafting)) return probing_ = true;
    }
    return false;
  }

  void learn_verify(int rows, double ms) {
    const double share = probes_ < TRIAL ? TRIAL_SHARE : PROBE_SHARE;
    const double most = *std::max_element(draft_ms, draft_ms + SOURCES);
    credit_ = std::min(credit_ + share * ms, TRIAL * most);
    costs.learn(rows, ms);
  }

  void learn_looking(int tokens, double ms, double looking_ms) { worth_.looked(tokens, ms, looking_ms); }

  void learn_rest(double ms) { worth_.rested(ms); }

  void learn_draft(int source, double ms) {
    double& usual = draft_ms[source];
    const double weight = ms < usual ? FASTER : SLOWER;
    usual = usual + weight * (std::min(ms, 3 * usual + 0.01) - usual);
    if (!probing_) return;
    probing_ = false;
    probes_++;
    credit_ -= ms;
  }

  VerifyCosts costs;
  double draft_ms[SOURCES];
  Calibration calibration[SOURCES];

 private:
  static constexpr double SLOWER = 0.05, FASTER = 0.3, TRIAL_SHARE = 0.05, PROBE_SHARE = 0.01, HOPE = 0.95;
  static constexpr double MARGIN = 1.05;
  static constexpr int TRIAL = 12;

  Worth worth_;
  double credit_ = 0;
  int probes_ = 0;
  bool probing_ = false;
};

}  // namespace ldf
