// The stages of a layer; see forward.h for their order. Functions with a `chunk` do one chunk of a stage.
#pragma once
#include "attention.h"
#include "candidates.h"
#include "embedding.h"
#include "products.h"
#include "rows.h"
#include "workspace.h"

namespace ldf {
namespace LDF_ISA {
namespace {

// Context of one thread in a pass: model, workspace, the thread's scratch memory, and the rows of the batch, or
// the rows of one chunk.
struct Stage {
  const Model& model;
  Workspace w;
  const Scratch& scratch;
  Turn* turn;
  int rows, start;
  int batch;   // rows of the whole batch
  int chunks;  // that share the work of a stage on these rows
};

Stage stage_of(const Model& model, const Workspace& w, Turn* turn, int rows, int start) {
  return {model, w, w.scratch, turn, rows, start, rows, turn->threads};
}

// Runs chunks of a stage until none is left and all are done; false if the pass has ended without this thread.
template <class Work>
bool run_stage(Turn* turn, Work work) {
  for (int chunk; (chunk = pool_take(turn)) >= 0;) {
    work(chunk);
    pool_done(turn);
  }
  return pool_next(turn);
}

// `first()` is true once: for work that a thread does before its first chunk of a stage.
class Once {
 public:
  bool first() {
    const bool was = !done_;
    done_ = true;
    return was;
  }

 private:
  bool done_ = false;
};

struct Share {
  int begin, end;
};

Share share(int units, int chunk, const Stage& s) {
  return {(int)(units * (int64_t)chunk / s.chunks), (int)(units * (int64_t)(chunk + 1) / s.chunks)};
}

// Returns the context of a chunk's rows, for work that needs no other rows.
Stage rows_of_chunk(const Stage& s, int chunk) {
  const Model& m = s.model;
  const Share rows = share(s.rows, chunk, s);
  const size_t begin = rows.begin;
  Stage own = s;
  own.rows = rows.end - rows.begin;
  own.start += rows.begin;
  own.chunks = 1;
  own.w.x += begin * m.hidden;
  own.w.queries += begin * (m.heads / m.kv_heads) * m.head_dim;
  own.w.gates += begin * m.heads * m.head_dim;
  own.w.heads = row_from(s.w.heads, begin, (size_t)m.heads * m.head_dim);
  own.w.inner = row_from(s.w.inner, begin, m.inner);
  return own;
}

int panels_of(const Matrix& matrix) { return (matrix.n + PANEL - 1) / PANEL; }

void embed(const Stage& s, int chunk, const int32_t* ids) {
  const Share rows = share(s.rows, chunk, s);
  for (int r = rows.begin; r < rows.end; r++) {
    float* x = s.w.x + (size_t)r * s.model.hidden;
    dequantize_row(s.model.embedding, ids[r], x);
    if (s.model.embedding_scale != 1.0f) multiply(x, s.model.embedding_scale, s.model.hidden);
  }
}

// Norms and quantizes the residual stream into this thread's rows.
void norm_and_quantize(const Stage& s, const float* weight) {
  const int hidden = s.model.hidden;
  for (int r = 0; r < s.rows; r++) {
    norm(s.w.x + (size_t)r * hidden, weight, s.model.eps, hidden, s.scratch.wide);
    quantize(s.scratch.wide, hidden, row_from(s.scratch.rows, r, hidden));
  }
}

// Projects one head, [rows][head_dim].
void project_head(const Stage& s, const Matrix& matrix, const float* bias, int head, float* out) {
  const int size = s.model.head_dim, panels = size / PANEL;
  product(&matrix, &s.scratch.rows, s.rows, head * panels, (head + 1) * panels, out, size);
  for (int r = 0; bias && r < s.rows; r++) add_bias(out + (size_t)r * size, bias + (size_t)head * size, size);
}

void norm_and_rotate(const Stage& s, float* x, int row, const float* weight) {
  const Model& m = s.model;
  const size_t at = (size_t)(s.start + row) * (m.rotary / 2);
  if (weight) norm(x, weight, m.eps, m.head_dim, x);
  rotate(x, m.cosines + at, m.sines + at, m.rotary);
}

void project_query(const Stage& s, const Layer& layer, int head) {
  const Model& m = s.model;
  const int group = m.heads / m.kv_heads;
  if (m.gated) {
    project_head(s, layer.query, nullptr, 2 * head + 1, s.scratch.narrow);
    for (int r = 0; r < s.rows; r++) {
      float* gates = s.w.gates + ((size_t)r * m.heads + head) * m.head_dim;
      memcpy(gates, s.scratch.narrow + (size_t)r * m.head_dim, sizeof(float) * m.head_dim);
    }
  }
  project_head(s, layer.query, layer.query_bias, m.gated ? 2 * head : head, s.scratch.narrow);
  for (int r = 0; r < s.rows; r++) {
    float* x = s.scratch.narrow + (size_t)r * m.head_dim;
    norm_and_rotate(s, x, r, layer.query_norm);
    const size_t at = ((size_t)(head / group) * s.batch + r) * group + head % group;
    memcpy(s.w.queries + at * m.head_dim, x, sizeof(float) * m.head_dim);
  }
}

void project_key(const Stage& s, const Layer& layer, int kv_head) {
  const Model& m = s.model;
  const Cache cache = cache_of(layer.cache, m.capacity, m.head_dim, kv_head);
  project_head(s, layer.key, layer.key_bias, kv_head, s.scratch.narrow);
  for (int r = 0; r < s.rows; r++) {
    float* x = s.scratch.narrow + (size_t)r * m.head_dim;
    norm_and_rotate(s, x, r, layer.key_norm);
    put_key(&cache, m.head_dim, s.start + r, x);
  }
}

void project_value(const Stage& s, const Layer& layer, int kv_head) {
  const Model& m = s.model;
  const Cache cache = cache_of(layer.cache, m.capacity, m.head_dim, kv_head);
  project_head(s, layer.value, layer.value_bias, kv_head, s.scratch.narrow);
  for (int r = 0; r < s.rows; r++) {
    put_value(&cache, m.head_dim, s.start + r, s.scratch.narrow + (size_t)r * m.head_dim);
  }
}

// Projects Q, K and V of this thread's normed rows, head by head; K and V go into the cache.
void project(const Stage& s, int chunk, const Layer& layer) {
  const Model& m = s.model;
  const Share heads = share(m.heads + 2 * m.kv_heads, chunk, s);
  for (int h = heads.begin; h < heads.end; h++) {
    if (h < m.heads) {
      project_query(s, layer, h);
    } else if (h < m.heads + m.kv_heads) {
      project_key(s, layer, h - m.heads);
    } else {
      project_value(s, layer, h - m.heads - m.kv_heads);
    }
  }
}

// Sets the key ranges of queries begin up to end, and their heads' sinks, in `Scratch`.
void set_key_ranges(const Stage& s, const Layer& layer, int kv_head, int begin, int end) {
  const int group = s.model.heads / s.model.kv_heads;
  const int after = s.start + s.rows;
  for (int i = begin; i < end; i++) {
    const int position = s.start + i / group;
    int to = layer.causal ? position + 1 : after;
    if (layer.window && to - position > layer.window) to = position + layer.window;
    s.scratch.first[i] = layer.window && position - layer.window + 1 > 0 ? position - layer.window + 1 : 0;
    s.scratch.last[i] = to;
    if (layer.sinks) s.scratch.sinks[i] = layer.sinks[kv_head * group + i % group];
  }
}

// Returns the number of slices of a key-value head's queries. Slices that balance the threads read some keys twice,
// which pays only if each slice fills a tile.
int slices_of(int threads, int kv_heads, int queries) {
  for (int slices = 1; slices <= threads && slices * TILE <= queries; slices++) {
    if (kv_heads * slices % threads == 0) return slices;
  }
  const int slices = (threads + kv_heads - 1) / kv_heads;
  return slices < queries ? slices : queries;
}

// x *= sigmoid(gate).
void apply_gate(const float* gate, int size, float* x) {
  for (int i = 0; i < size; i += 16) store(x + i, mul(load(x + i), sigmoid(load(gate + i))));
}

// Gates and quantizes the output of query i of a key-value head for the next product.
void store_head(const Stage& s, int kv_head, int i) {
  const Model& m = s.model;
  const int group = m.heads / m.kv_heads, row = i / group, head = kv_head * group + i % group;
  float* attended = s.w.attended + ((size_t)kv_head * s.rows * group + i) * m.head_dim;
  if (m.gated) apply_gate(s.w.gates + ((size_t)row * m.heads + head) * m.head_dim, m.head_dim, attended);
  quantize(attended, m.head_dim, row_from(s.w.heads, row, m.heads * m.head_dim, (size_t)head * m.head_dim));
}

float score_scale(const Model& m) { return 1.0f / __builtin_sqrtf((float)m.head_dim); }

// Attends in one stage. A unit is a slice of a key-value head's queries.
void attend_to_all(const Stage& s, int chunk, const Layer& layer) {
  const Model& m = s.model;
  const int queries = s.rows * (m.heads / m.kv_heads), slices = slices_of(s.turn->threads, m.kv_heads, queries);
  const Share units = share(m.kv_heads * slices, chunk, s);
  for (int u = units.begin; u < units.end; u++) {
    const int kv_head = u / slices, slice = u % slices;
    const int begin = queries * slice / slices, end = queries * (slice + 1) / slices;
    const size_t at = ((size_t)kv_head * queries + begin) * m.head_dim;
    const Cache cache = cache_of(layer.cache, m.capacity, m.head_dim, kv_head);
    set_key_ranges(s, layer, kv_head, begin, end);
    attend(&cache, s.w.queries + at, m.head_dim, s.scratch.first + begin, s.scratch.last + begin, end - begin,
           m.head_dim, score_scale(m), s.w.attended + at, m.head_dim, layer.sinks ? s.scratch.sinks + begin : nullptr);
    for (int i = begin; i < end; i++) store_head(s, kv_head, i);
  }
}

// Returns the parts of the keys that the batch sees.
Share parts_seen(const Stage& s, const Layer& layer) {
  const int first = layer.window && s.start >= layer.window ? s.start - layer.window + 1 : 0;
  return {first / PART, (s.start + s.rows + PART - 1) / PART};
}

// Returns the softmaxes of a part of the keys, of all queries of a key-value head.
Softmax part_of(const Stage& s, int kv_head, int part) {
  const Model& m = s.model;
  const size_t queries = (size_t)SPLIT_ROWS * (m.heads / m.kv_heads);
  float* at = s.w.parts + (kv_head * parts_of(m) + part) * queries * (2 + m.head_dim);
  return {at, at + queries, at + 2 * queries, m.head_dim};
}

// First of two stages: attends to parts of the keys. A unit is a part, for all queries of a key-value head.
void attend_to_parts(const Stage& s, int chunk, const Layer& layer) {
  const Model& m = s.model;
  const int queries = s.rows * (m.heads / m.kv_heads);
  const Share parts = parts_seen(s, layer), units = share(m.kv_heads * (parts.end - parts.begin), chunk, s);
  for (int u = units.begin; u < units.end; u++) {
    const int kv_head = u / (parts.end - parts.begin), part = parts.begin + u % (parts.end - parts.begin);
    const Cache cache = cache_of(layer.cache, m.capacity, m.head_dim, kv_head);
    set_key_ranges(s, layer, kv_head, 0, queries);
    attend_to_part(cache, s.w.queries + (size_t)kv_head * queries * m.head_dim, s.scratch.first, s.scratch.last,
                   queries, m.head_dim, score_scale(m), part, part_of(s, kv_head, part));
  }
}

// Second stage: adds up the parts. A unit is a query.
void merge_parts(const Stage& s, int chunk, const Layer& layer) {
  const Model& m = s.model;
  const int group = m.heads / m.kv_heads, queries = s.rows * group;
  const Share parts = parts_seen(s, layer), units = share(m.kv_heads * queries, chunk, s);
  for (int u = units.begin; u < units.end; u++) {
    const int kv_head = u / queries, i = u % queries;
    float peak, total;
    const Softmax sums{&peak, &total, s.w.attended + (size_t)u * m.head_dim, 0};
    start(sums, 1, m.head_dim, layer.sinks ? layer.sinks + kv_head * group + i % group : nullptr);
    for (int p = parts.begin; p < parts.end; p++) add_part(part_of(s, kv_head, p).from(i), 0, m.head_dim, sums);
    with_cache_format(layer.cache, [&](auto format) { finish<decltype(format)>(sums, 0, m.head_dim); });
    store_head(s, kv_head, i);
  }
}

// Runs attention, in two stages if whole heads would leave threads without work.
bool attention(const Stage& s, const Layer& layer) {
  const Share parts = parts_seen(s, layer);
  const bool is_balanced = s.model.kv_heads % s.turn->threads == 0;
  if (is_balanced || s.rows > SPLIT_ROWS || parts.end - parts.begin == 1) {
    return run_stage(s.turn, [&](int chunk) { attend_to_all(s, chunk, layer); });
  }
  return run_stage(s.turn, [&](int chunk) { attend_to_parts(s, chunk, layer); }) &&
         run_stage(s.turn, [&](int chunk) { merge_parts(s, chunk, layer); });
}

// Computes a chunk of the channels of a product piece by piece, and calls `use(channel, size)` for each piece in
// `narrow` [rows][CHUNK].
template <class Use>
void for_each_piece(const Stage& s, int chunk, const Matrix& matrix, const Rows& rows, Use use) {
  const Share panels = share(panels_of(matrix), chunk, s);
  for (int p = panels.begin; p < panels.end; p += CHUNK / PANEL) {
    const int end = p + CHUNK / PANEL < panels.end ? p + CHUNK / PANEL : panels.end;
    product(&matrix, &rows, s.rows, p, end, s.scratch.narrow, CHUNK);
    use(p * PANEL, (end - p) * PANEL);
  }
}

// x += (matrix * rows) * weights + bias for a chunk of the channels; weights [rows] are 1 if null.
void add_product(const Stage& s, int chunk, const Matrix& matrix, const Rows& rows, const float* bias = nullptr,
                 const float* weights = nullptr) {
  for_each_piece(s, chunk, matrix, rows, [&](int channel, int size) {
    for (int r = 0; r < s.rows; r++) {
      float* x = s.w.x + (size_t)r * s.model.hidden + channel;
      if (bias) add_bias(x, bias + channel, size);
      for (int c = 0; c < size; c += 16) {
        const Lanes term = load(s.scratch.narrow + (size_t)r * CHUNK + c);
        store(x + c, weights ? fma(splat(weights[r]), term, load(x + c)) : add(load(x + c), term));
      }
    }
  });
}

// Gate and up matrices of an MLP or an expert.
struct GatedMatrices {
  Matrix gate, up;
  const float *gate_bias, *up_bias;
  int inner;
};

// Computes SwiGLU of `count` rows, quantized, for the units `begin` up to `end` of 32 channels.
void gate_and_up(const Stage& s, const GatedMatrices& of, const Rows& rows, int count, const Rows& out, int begin,
                 int end) {
  const float limit = s.model.swiglu_limit;
  float *gated = s.scratch.narrow, *raised = gated + (size_t)MAX_ROWS * GROUP;
  for (int u = begin; u < end; u++) {
    product(&of.gate, &rows, count, 2 * u, 2 * u + 2, gated, GROUP);
    product(&of.up, &rows, count, 2 * u, 2 * u + 2, raised, GROUP);
    for (int r = 0; r < count; r++) {
      float *x = gated + (size_t)r * GROUP, *y = raised + (size_t)r * GROUP;
      if (of.gate_bias) add_bias(x, of.gate_bias + u * GROUP, GROUP);
      if (of.up_bias) add_bias(y, of.up_bias + u * GROUP, GROUP);
      if (limit > 0) {
        swiglu_clamped(x, y, limit, GROUP, x);
      } else {
        swiglu(x, y, GROUP, x);
      }
      quantize(x, GROUP, row_from(out, r, of.inner, (size_t)u * GROUP));
    }
  }
}

// Computes logits of this thread's normed rows for a chunk of the tokens, and calls `use(row, logits, first, count)`.
template <class Use>
void scan_logits(const Stage& s, int chunk, const Matrix& head, int vocabulary, Use use) {
  const Share panels = share(panels_of(head), chunk, s);
  for (int p = panels.begin; p < panels.end; p += HEAD_CHUNK / PANEL) {
    const int end = p + HEAD_CHUNK / PANEL < panels.end ? p + HEAD_CHUNK / PANEL : panels.end;
    const int first = p * PANEL, last = end * PANEL < vocabulary ? end * PANEL : vocabulary;
    product(&head, &s.scratch.rows, s.rows, p, end, s.scratch.narrow, HEAD_CHUNK);
    for (int r = 0; r < s.rows; r++) use(r, s.scratch.narrow + (size_t)r * HEAD_CHUNK, first, last - first);
  }
}

// Initialises and returns a chunk's best tokens of each row.
Best* begin_best(const Stage& s, int chunk) {
  Best* best = reinterpret_cast<Best*>(s.w.best) + (size_t)chunk * MAX_ROWS;
  for (int r = 0; r < s.rows; r++) best[r] = {0, -FLT_MAX, 0.0f};  // no token yet
  return best;
}

// Computes logits, and the best token or the candidates of each row.
void scan_head(const Stage& s, int chunk, const Pass& pass) {
  const Model& m = s.model;
  const bool scaled = m.logit_scale != 1.0f || m.softcap > 0;
  Best* best = begin_best(s, chunk);
  for (int r = 0; r < s.rows; r++) begin_candidates(m, candidates_of(s.w, m, chunk, r));
  scan_logits(s, chunk, m.head, m.vocabulary, [&](int r, float* logits, int first, int count) {
    if (scaled) scale_and_cap(logits, m.logit_scale, m.softcap, (count + 15) / 16 * 16);
    if (pass.logits) memcpy(pass.logits + (size_t)r * m.vocabulary + first, logits, sizeof(float) * count);
    if (!pass.best) return;
    if (m.slots.candidates) {
      add_candidates(m, logits, first, count, candidates_of(s.w, m, chunk, r));
    } else if (pass.finite || m.slots.markov_w2.n) {
      best[r] = better(best[r], likeliest_of(logits, first, count));
    } else {
      best[r] = better(best[r], best_of(logits, first, count));
    }
  });
}

// Returns the best token of a row over all chunks.
Best best_of_chunks(const Workspace& w, int chunks, int row) {
  const Best* parts = reinterpret_cast<const Best*>(w.best);
  Best best = parts[row];
  for (int c = 1; c < chunks; c++) best = better(best, parts[(size_t)c * MAX_ROWS + row]);
  return best;
}

// Writes the pass's results for each row.
void write_best(const Model& m, const Pass& pass, int chunks) {
  if (!pass.best) return;
  const Workspace w = lay_out_workspace(m, 0, chunks, m.workspace);
  for (int r = 0; r < pass.rows; r++) {
    const Best best = best_of_chunks(w, chunks, r);
    pass.best[r] = best.token;
    if (pass.finite) pass.finite[r] = best.total == 0.0f;
    if (pass.confidence) pass.confidence[r] = 1.0f / best.total;
  }
}

}  // namespace
}  // namespace LDF_ISA
}  // namespace ldf
