// Gated delta-net layers: instead of a KV cache a head has a state, a matrix [k_dim][v_dim] that every row decays,
// corrects and reads:
//
//   state *= decay;  state += key (value - state^T key)^T * beta;  out = state^T query
//
// where query, key and value are convolutions of the newest `kernel` projections, channel by channel. A row is a token.
// The stored state precedes the last pass, and is stored with the inputs of that pass's rows. The next pass first
// replays the accepted rows with the same operations in the same order, so any prefix of a batch can be accepted.
#pragma once
#include "stages.h"

namespace ldf {
namespace LDF_ISA {
namespace {

// Sizes derived from the shape of the delta nets.
struct Sizing {
  const DeltaShape& d;
  int keys() const { return d.k_heads * d.k_dim; }
  int values() const { return d.v_heads * d.v_dim; }
  int mixed() const { return 2 * keys() + values(); }
  int before() const { return d.kernel - 1; }
  size_t state_of_head() const { return (size_t)d.k_dim * d.v_dim; }
};

// ln(1 + e^x).
inline Lanes softplus(Lanes x) {
  const Lanes small = exponential(min(x, sub(splat(0.0f), x)));  // keeps NaN
  const Lanes s = div(small, add(splat(2.0f), small)), square = mul(s, s);  // ln(1 + t) = 2 artanh(t / (2 + t))
  Lanes series = splat(1.0f / 17);
  for (int n = 15; n > 0; n -= 2) series = fma(series, square, splat(1.0f / n));
  return fma(splat(2.0f), mul(s, series), max(splat(0.0f), x));
}

// Convolves some channels of a row; `history` points to the row's oldest input.
inline void convolve(const DeltaNet& net, const Sizing& z, const float* history, int channel, int size, float* out) {
  const ptrdiff_t mixed = z.mixed();
  for (int c = channel; c < channel + size; c += 16) {
    Lanes total = splat(0.0f);
    for (int i = 0; i < z.d.kernel; i++) {
      total = fma(load(history + i * mixed + c), load(net.conv + i * mixed + c), total);
    }
    store(out + c - channel, mul(total, sigmoid(total)));
  }
}

// Scales x to the length `scale`.
inline void unit(float* x, int size, float scale) {
  Lanes squares = splat(0.0f);
  for (int i = 0; i < size; i += 16) squares = fma(load(x + i), load(x + i), squares);
  const Lanes factor = splat(scale / __builtin_sqrtf(sum(squares) + 1e-6f));
  for (int i = 0; i < size; i += 16) store(x + i, mul(load(x + i), factor));
}

// Updates 16 columns of a state [k_dim][16] by one row; returns the row's output for these columns.
template <bool reads>
inline Lanes advance(float* state, const float* key, const float* query, Lanes value, float decay, float beta,
                     int k_dim) {
  Lanes sums[4], kept = splat(decay);
  for (Lanes& total : sums) total = splat(0.0f);
  for (int i = 0; i < k_dim; i += 4) {
    for (int j = 0; j < 4; j++) {
      const Lanes decayed = mul(load(state + (i + j) * 16), kept);
      store(state + (i + j) * 16, decayed);
      sums[j] = fma(splat(key[i + j]), decayed, sums[j]);
    }
  }
  const Lanes predicted = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
  const Lanes correction = mul(sub(value, predicted), splat(beta));
  for (Lanes& total : sums) total = splat(0.0f);
  for (int i = 0; i < k_dim; i += 4) {
    for (int j = 0; j < 4; j++) {
      const Lanes corrected = fma(splat(key[i + j]), correction, load(state + (i + j) * 16));
      store(state + (i + j) * 16, corrected);
      if constexpr (reads) sums[j] = fma(splat(query[i + j]), corrected, sums[j]);
    }
  }
  return add(add(sums[0], sums[1]), add(sums[2], sums[3]));
}

// Keys and values of a head's rows; queries only if outputs are computed.
struct HeadRows {
  float *queries, *keys, *values;  // [rows][k_dim], ..., [rows][v_dim]
};

inline void convolve_head(const Stage& s, const DeltaNet& net, const float* history, int rows, int head, bool reads,
                          const HeadRows& out) {
  const Sizing z{s.model.delta};
  const DeltaShape& d = z.d;
  const int k_head = head % d.k_heads;
  for (int r = 0; r < rows; r++, history += z.mixed()) {
    float* key = out.keys + (size_t)r * d.k_dim;
    convolve(net, z, history, z.keys() + k_head * d.k_dim, d.k_dim, key);
    unit(key, d.k_dim, 1.0f);
    convolve(net, z, history, 2 * z.keys() + head * d.v_dim, d.v_dim, out.values + (size_t)r * d.v_dim);
    if (!reads) continue;
    float* query = out.queries + (size_t)r * d.k_dim;
    convolve(net, z, history, k_head * d.k_dim, d.k_dim, query);
    unit(query, d.k_dim, 1.0f / __builtin_sqrtf((float)d.k_dim));
  }
}

// Advances a head's state by rows, 16 columns at a time; outputs replace the values. Without `keep_all` only a copy of
// the state advances.
inline void run_head(const Stage& s, const DeltaNet& net, int head, int rows, const HeadRows& x, bool reads,
                     bool keep_all) {
  const DeltaShape& d = s.model.delta;
  float* of_head = net.state + head * Sizing{d}.state_of_head();
  for (int column = 0; column < d.v_dim; column += 16) {
    float *block = of_head + (size_t)column * d.k_dim, *state = keep_all ? block : s.scratch.state;
    if (!keep_all) memcpy(state, block, sizeof(float) * 16 * d.k_dim);
    for (int r = 0; r < rows; r++) {
      float* value = x.values + (size_t)r * d.v_dim + column;
      const float *key = x.keys + (size_t)r * d.k_dim, *query = x.queries + (size_t)r * d.k_dim;
      const size_t gate = (size_t)r * d.v_heads + head;
      const float decay = net.decays[gate], beta = net.betas[gate];
      if (reads) {
        store(value, advance<true>(state, key, query, load(value), decay, beta, d.k_dim));
      } else {
        advance<false>(state, key, query, load(value), decay, beta, d.k_dim);
      }
    }
  }
}

HeadRows head_rows(const Stage& s) {
  const DeltaShape& d = s.model.delta;
  float* x = s.scratch.delta;
  return {x, x + (size_t)MAX_ROWS * d.k_dim, x + (size_t)2 * MAX_ROWS * d.k_dim};
}

// Returns the number of accepted rows of the last pass; 0 at the start of a sequence.
int kept_rows(const Stage& s) { return s.start ? s.start - s.model.progress->base : 0; }

// Advances all states by the accepted rows of the last pass, or zeroes them at the start of a sequence.
void advance_states(const Stage& s, int chunk) {
  const DeltaShape& d = s.model.delta;
  const int kept = kept_rows(s);
  if (!d.v_heads || (s.start && !kept)) return;
  const Share units = share(s.model.blocks * d.v_heads, chunk, s);
  const HeadRows x = head_rows(s);
  for (int u = units.begin; u < units.end; u++) {
    const DeltaNet* net = s.model.layers[u / d.v_heads].delta;
    const int head = u % d.v_heads;
    if (!net) continue;
    if (!s.start) {
      const size_t size = Sizing{d}.state_of_head();
      memset(net->state + head * size, 0, sizeof(float) * size);
      continue;
    }
    convolve_head(s, *net, net->history, kept, head, false, x);
    run_head(s, *net, head, kept, x, false, true);
  }
}

// Shifts the history by some rows, so that the inputs before the next row are at its front; channels first up to last.
void shift_history(const Stage& s, const DeltaNet& net, int rows, int first, int last) {
  const Sizing z{s.model.delta};
  const size_t mixed = z.mixed(), bytes = sizeof(float) * (last - first);
  for (int i = 0; rows && i < z.before(); i++) {
    float* to = net.history + i * mixed + first;
    memmove(to, to + rows * mixed, bytes);
  }
}

// Shifts the history of all layers, at the end of a pass that advanced the states.
void shift_histories(const Stage& s, int chunk, int rows) {
  const Share blocks = share(s.model.blocks, chunk, s);
  for (int b = blocks.begin; b < blocks.end; b++) {
    const DeltaNet* net = s.model.layers[b].delta;
    if (net) shift_history(s, *net, rows, 0, Sizing{s.model.delta}.mixed());
  }
}

// Computes the decay and the learning rate of each head for each row [v_heads].
void project_gates(const Stage& s, const DeltaNet& net) {
  const int heads = s.model.delta.v_heads, panels = panels_of(net.alpha), across = panels * PANEL;
  float *alpha = s.scratch.narrow, *beta = alpha + (size_t)MAX_ROWS * across;
  product(&net.alpha, &s.scratch.rows, s.rows, 0, panels, alpha, across);
  product(&net.beta, &s.scratch.rows, s.rows, 0, panels, beta, across);
  for (int r = 0; r < s.rows; r++) {
    for (int h = 0; h < heads; h += 16) {
      const int count = heads - h < 16 ? heads - h : 16;
      float rate[16] = {}, shift[16] = {}, decays[16], betas[16];
      memcpy(rate, net.rate + h, sizeof(float) * count);
      memcpy(shift, net.shift + h, sizeof(float) * count);
      const size_t at = (size_t)r * across + h, to = (size_t)r * heads + h;
      store(decays, exponential(mul(load(rate), softplus(add(load(alpha + at), load(shift))))));
      store(betas, sigmoid(load(beta + at)));
      memcpy(net.decays + to, decays, sizeof(float) * count);
      memcpy(net.betas + to, betas, sizeof(float) * count);
    }
  }
}

// Projects the convolution's inputs into the history, the output gates, and each head's decay and learning rate.
void project_delta(const Stage& s, int chunk, const DeltaNet& net) {
  const Sizing z{s.model.delta};
  const int mixing = z.mixed() / PANEL, all = mixing + z.values() / PANEL;
  const Share panels = share(all, chunk, s);
  const int last = panels.end < mixing ? panels.end : mixing, first = panels.begin > mixing ? panels.begin : mixing;
  if (panels.begin < last) {
    const int begin = panels.begin * PANEL, end = last * PANEL;
    shift_history(s, net, kept_rows(s), begin, end);
    for (int i = 0; !s.start && i < z.before(); i++) {
      memset(net.history + i * z.mixed() + begin, 0, sizeof(float) * (end - begin));
    }
    float* fresh = net.history + z.before() * z.mixed() + begin;
    product(&net.mixed, &s.scratch.rows, s.rows, panels.begin, last, fresh, z.mixed());
  }
  if (first < panels.end) {
    float* gates = s.w.gates + (size_t)(first - mixing) * PANEL;
    product(&net.gate, &s.scratch.rows, s.rows, first - mixing, panels.end - mixing, gates, z.values());
  }
  if (chunk == s.turn->threads - 1) project_gates(s, net);
}

// Computes the heads' outputs, normed, gated and quantized.
void run_delta_heads(const Stage& s, int chunk, const DeltaNet& net, bool keep_all) {
  const Sizing z{s.model.delta};
  const DeltaShape& d = z.d;
  const Share heads = share(d.v_heads, chunk, s);
  const HeadRows x = head_rows(s);
  for (int h = heads.begin; h < heads.end; h++) {
    convolve_head(s, net, net.history, s.rows, h, true, x);
    run_head(s, net, h, s.rows, x, true, keep_all);
    for (int r = 0; r < s.rows; r++) {
      float* out = x.values + (size_t)r * d.v_dim;
      const float* gate = s.w.gates + (size_t)r * z.values() + (size_t)h * d.v_dim;
      norm(out, net.norm, s.model.eps, d.v_dim, out);
      for (int i = 0; i < d.v_dim; i += 16) {
        const Lanes g = load(gate + i);
        store(out + i, mul(load(out + i), mul(g, sigmoid(g))));
      }
      quantize(out, d.v_dim, row_from(s.w.heads, r, z.values(), (size_t)h * d.v_dim));
    }
  }
}

}  // namespace
}  // namespace LDF_ISA
}  // namespace ldf
