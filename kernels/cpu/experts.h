// Mixture of experts: the router chooses a few experts for every row.
//
// Rows are sorted by expert into slots, an expert's matrices run over its slots, and a row sums its experts' outputs in
// the order of their numbers.
#pragma once
#include "stages.h"

namespace ldf {
namespace LDF_ISA {
namespace {

constexpr int MAX_EXPERTS = 512, MAX_CHOSEN = 32;

// Assignment of slots to experts: the slots of an expert are consecutive, in the order of the rows.
struct Routing {
  int first[MAX_EXPERTS + 1];            // expert e has the slots first[e] up to first[e + 1]
  int row[MAX_ROWS * MAX_CHOSEN];        // by slot
  float weight[MAX_ROWS * MAX_CHOSEN];  // by slot
};

Matrix expert_of(const Matrix& all, int expert) {
  const size_t panels = (size_t)panels_of(all) * expert, groups = all.k / GROUP;
  const Sizes sizes = sizes_of(all.kind);
  Matrix one = all;
  one.codes += panels * groups * sizes.codes;
  one.scales += panels * groups * sizes.scales;
  if (sizes.supers) one.supers += panels * groups * sizes.supers / (SUPER / GROUP);
  return one;
}

const float* bias_of(const float* all, int expert, int size) { return all ? all + (size_t)expert * size : nullptr; }

// Computes the router logits of all rows for a chunk of the experts.
void route(const Stage& s, int chunk, const Layer& layer) {
  const Model& m = s.model;
  const Share experts = share(m.experts, chunk, s);
  for (int r = 0; r < s.rows; r++) {
    norm(s.w.x + (size_t)r * m.hidden, layer.mlp_norm, m.eps, m.hidden, s.scratch.wide);
    for (int e = experts.begin; e < experts.end; e++) {
      const float logit = dot(s.scratch.wide, layer.router + (size_t)e * m.hidden, m.hidden);
      s.w.router[(size_t)r * m.experts + e] = logit + (layer.router_bias ? layer.router_bias[e] : 0.0f);
    }
    if (m.shared && chunk == s.turn->threads - 1) {
      s.w.shares[r] = 1.0f / (1.0f + exponential(-dot(s.scratch.wide, layer.shared_router, m.hidden)));
    }
  }
}

// Chooses the likeliest experts of a row, ascending by number, and their softmax weights; ties go to the lowest.
void choose_experts(const Model& m, const float* logits, int* chosen, float* weights) {
  float largest = logits[0];
  for (int e = 1; e < m.experts; e++) largest = logits[e] > largest ? logits[e] : largest;
  float all = 0, total = 0, exponentials[MAX_EXPERTS];
  for (int e = 0; e < m.experts; e += 16) {
    float lanes[16] = {};
    const int count = m.experts - e < 16 ? m.experts - e : 16;
    for (int i = 0; i < count; i++) lanes[i] = logits[e + i] - largest;
    store(lanes, exponential(load(lanes)));
    for (int i = 0; i < count; i++) all += exponentials[e + i] = lanes[i];
  }
  bool is_chosen[MAX_EXPERTS] = {};
  for (int c = 0; c < m.chosen; c++) {
    int best = -1;
    for (int e = 0; e < m.experts; e++) {
      if (!is_chosen[e] && (best < 0 || logits[e] > logits[best])) best = e;
    }
    is_chosen[best] = true;
  }
  int count = 0;
  for (int e = 0; e < m.experts; e++) {
    if (!is_chosen[e]) continue;
    chosen[count] = e;
    total += exponentials[e];
    weights[count++] = exponentials[e];
  }
  total += 0 * all;  // NaN if any logit is NaN
  for (int c = 0; c < m.chosen; c++) weights[c] /= m.normalise ? total : all;
}

void sort_by_expert(const Stage& s, Routing& routing) {
  const Model& m = s.model;
  int chosen[MAX_ROWS][MAX_CHOSEN], slot[MAX_EXPERTS + 1] = {};
  float weights[MAX_ROWS][MAX_CHOSEN];
  for (int r = 0; r < s.rows; r++) {
    choose_experts(m, s.w.router + (size_t)r * m.experts, chosen[r], weights[r]);
    for (int c = 0; c < m.chosen; c++) slot[chosen[r][c] + 1]++;
  }
  for (int e = 0; e < m.experts; e++) slot[e + 1] += slot[e];
  memcpy(routing.first, slot, sizeof(int) * (m.experts + 1));
  for (int r = 0; r < s.rows; r++) {
    for (int c = 0; c < m.chosen; c++) {
      const int to = slot[chosen[r][c]]++;
      routing.row[to] = r;
      routing.weight[to] = weights[r][c];
    }
  }
}

// Gathers the quantized rows of one expert.
void gather(const Stage& s, const int* rows, int count) {
  const int k = s.model.hidden;
  for (int i = 0; i < count; i++) {
    const Rows from = row_from(s.scratch.rows, rows[i], k), to = row_from(s.scratch.gathered, i, k);
    memcpy(to.codes, from.codes, k);
    memcpy(to.scales, from.scales, sizeof(float) * (k / GROUP));
    memcpy(to.sums, from.sums, sizeof(int32_t) * (k / 16));
    memcpy(to.totals, from.totals, sizeof(float) * (k / GROUP));
  }
}

// Computes gate and up of all chosen experts, in units of 32 channels that are numbered across the active experts.
void compute_gate_up(const Stage& s, int chunk, const Layer& layer, const Routing& routing) {
  const Model& m = s.model;
  const int per_expert = m.inner / GROUP;
  int active = 0;
  for (int e = 0; e < m.experts; e++) active += routing.first[e + 1] > routing.first[e];
  const Share units = share(active * per_expert, chunk, s);
  int unit = 0;  // number of the expert's first unit
  for (int e = 0; e < m.experts && unit < units.end; e++) {
    const int count = routing.first[e + 1] - routing.first[e];
    if (!count) continue;
    const int begin = units.begin > unit ? units.begin - unit : 0;
    const int end = units.end - unit < per_expert ? units.end - unit : per_expert;
    unit += per_expert;
    if (begin >= end) continue;
    gather(s, routing.row + routing.first[e], count);
    const GatedMatrices of = {expert_of(layer.gate, e), expert_of(layer.up, e), bias_of(layer.gate_bias, e, m.inner),
                      bias_of(layer.up_bias, e, m.inner), m.inner};
    gate_and_up(s, of, s.scratch.gathered, count, row_from(s.w.inner, routing.first[e], m.inner), begin, end);
  }
}

// Computes x += weight * (down(inner) + bias) for a chunk of the channels, expert by expert.
void add_down(const Stage& s, int chunk, const Layer& layer, const Routing& routing) {
  const Model& m = s.model;
  const Share panels = share(panels_of(layer.down), chunk, s);
  for (int e = 0; e < m.experts; e++) {
    const int first = routing.first[e], count = routing.first[e + 1] - first;
    if (!count) continue;
    const Matrix down = expert_of(layer.down, e);
    const Rows rows = row_from(s.w.inner, first, m.inner);
    const float* bias = bias_of(layer.down_bias, e, m.hidden);
    for (int p = panels.begin; p < panels.end; p += CHUNK / PANEL) {
      const int end = p + CHUNK / PANEL < panels.end ? p + CHUNK / PANEL : panels.end;
      product(&down, &rows, count, p, end, s.scratch.narrow, CHUNK);
      for (int i = 0; i < count; i++) {
        float* x = s.w.x + (size_t)routing.row[first + i] * m.hidden + (size_t)p * PANEL;
        float* y = s.scratch.narrow + (size_t)i * CHUNK;
        const Lanes weight = splat(routing.weight[first + i]);
        if (bias) add_bias(y, bias + (size_t)p * PANEL, (end - p) * PANEL);
        for (int c = 0; c < (end - p) * PANEL; c += 16) store(x + c, fma(weight, load(y + c), load(x + c)));
      }
    }
  }
}

// Runs the three stages of a mixture; adds the shared expert last.
bool mixture(const Stage& s, const Layer& layer) {
  Once sorted, ready;
  Routing routing;
  return run_stage(s.turn, [&](int chunk) { route(s, chunk, layer); }) && run_stage(s.turn, [&](int chunk) {
    if (ready.first()) norm_and_quantize(s, layer.mlp_norm);
    if (sorted.first()) sort_by_expert(s, routing);
    compute_gate_up(s, chunk, layer, routing);
    if (s.model.shared) {
      const Share units = share(s.model.shared / GROUP, chunk, s);
      const GatedMatrices of = {layer.shared_gate, layer.shared_up, nullptr, nullptr, s.model.shared};
      gate_and_up(s, of, s.scratch.rows, s.rows, s.w.shared, units.begin, units.end);
    }
  }) && run_stage(s.turn, [&](int chunk) {
    if (sorted.first()) sort_by_expert(s, routing);
    add_down(s, chunk, layer, routing);
    if (s.model.shared) add_product(s, chunk, layer.shared_down, s.w.shared, nullptr, s.w.shares);
  });
}

}  // namespace
}  // namespace LDF_ISA
}  // namespace ldf
