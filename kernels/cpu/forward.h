// One pass of a decoder, stage by stage. Threads share the channels of a matrix, and each repeats cheap work (norms,
// quantization), which costs less than another stage. Of a prompt they share the rows instead.
//
// A row's (token's) results depend on that row and the cache, never on the rest of the batch or the number of threads.
#pragma once
#include "convolution.h"
#include "delta_net.h"
#include "experts.h"
#include "slots.h"

namespace ldf {
namespace LDF_ISA {
namespace {

struct Decoding {
  const Model* model;
  Pass pass;
};
static_assert(sizeof(Decoding) <= MAX_ARGUMENT, "the pool copies it");

// Copies a chunk of the rows of the residual stream after layer `index` to the features, if requested.
void copy_taps(const Stage& s, int chunk, const Pass& pass, int index) {
  const Model& m = s.model;
  if (!pass.taps) return;
  const Share rows = share(s.rows, chunk, s);
  for (int i = 0; i < m.tap_count; i++) {
    if (m.taps[i] != index) continue;
    for (int r = rows.begin; r < rows.end; r++) {
      float* to = pass.taps + ((size_t)r * m.tap_count + i) * m.hidden;
      memcpy(to, s.w.x + (size_t)r * m.hidden, sizeof(float) * m.hidden);
    }
  }
}

// Adds a chunk of the channels of attention's output to the residual stream.
void add_attention(const Stage& s, int chunk, const Layer& layer) {
  add_sublayer(s, chunk, layer.attention_conv, layer.output, s.w.heads, layer.output_bias);
}

// Computes a chunk of an MLP's inner channels from this thread's normed rows.
void compute_inner(const Stage& s, int chunk, const Layer& layer) {
  const Share units = share(s.model.inner / GROUP, chunk, s);
  const GatedMatrices of = {layer.gate, layer.up, nullptr, nullptr, s.model.inner};
  gate_and_up(s, of, s.scratch.rows, s.rows, s.w.inner, units.begin, units.end);
}

// Adds a chunk of the channels of an MLP's output to the residual stream.
void add_mlp(const Stage& s, int chunk, const Layer& layer) {
  add_sublayer(s, chunk, layer.mlp_conv, layer.down, s.w.inner, nullptr);
}

bool dense_mlp(const Stage& s, const Layer& layer) {
  Once ready;
  return compute_changes(s, layer.mlp_conv, layer.mlp_norm) && run_stage(s.turn, [&](int chunk) {
    if (ready.first()) quantize_input(s, layer.mlp_conv, layer.mlp_norm);
    compute_inner(s, chunk, layer);
  }) && run_stage(s.turn, [&](int chunk) { add_mlp(s, chunk, layer); });
}

bool project_layer(const Stage& s, const Layer& layer, const Pass& pass, int index) {
  Once ready;
  return compute_changes(s, layer.attention_conv, layer.attention_norm) && run_stage(s.turn, [&](int chunk) {
    copy_taps(s, chunk, pass, index - 1);
    if (ready.first()) quantize_input(s, layer.attention_conv, layer.attention_norm);
    if (layer.delta) {
      project_delta(s, chunk, *layer.delta);
    } else {
      project(s, chunk, layer);
    }
  });
}

bool run_heads(const Stage& s, const Layer& layer, const Pass& pass) {
  if (!layer.delta) return attention(s, layer);
  return run_stage(s.turn, [&](int chunk) { run_delta_heads(s, chunk, *layer.delta, pass.keep_all); });
}

// Runs all layers; false if the pass has ended without this thread.
bool run_layers(const Stage& s, const Pass& pass) {
  const Model& m = s.model;
  const bool reads_head = pass.logits || pass.best;
  for (int b = 0; b < m.blocks; b++) {
    const Layer& layer = m.layers[b];
    if (!project_layer(s, layer, pass, b)) return false;
    const bool feeds_head_alone = b == m.blocks - 1 && !reads_head;  // only its K, V and states are needed
    if (feeds_head_alone && !layer.delta) return true;
    if (!run_heads(s, layer, pass)) return false;
    if (feeds_head_alone) return true;
    if (!run_stage(s.turn, [&](int chunk) { add_attention(s, chunk, layer); })) return false;
    if (!(m.experts ? mixture(s, layer) : dense_mlp(s, layer))) return false;
  }
  return true;
}

// A thread that computes some of the rows reads all weights. With fewer rows, or larger layers, it would wait for them.
constexpr int MIN_ROWS_OF_A_THREAD = 16, MAX_HIDDEN_OF_SHARED_ROWS = 1024;

// Whether threads share the rows of the batch: prompts of small models. Some kinds of layers only share channels.
bool shares_rows(const Stage& s) {
  const Model& m = s.model;
  const bool only_channels = m.experts || m.conv.kernel || m.progress;
  return s.rows >= MIN_ROWS_OF_A_THREAD * s.turn->threads && m.hidden <= MAX_HIDDEN_OF_SHARED_ROWS && !only_channels;
}

// Runs all layers with shared rows: threads wait for each other only around attention, and rows stay in their caches.
bool run_layers_by_rows(const Stage& s, const Pass& pass) {
  const Model& m = s.model;
  for (int b = 0; b <= m.blocks; b++) {
    const bool done = run_stage(s.turn, [&](int chunk) {
      const Stage own = rows_of_chunk(s, chunk);
      if (b > 0) {
        const Layer& layer = m.layers[b - 1];
        add_attention(own, 0, layer);
        norm_and_quantize(own, layer.mlp_norm);
        compute_inner(own, 0, layer);
        add_mlp(own, 0, layer);
      }
      if (b == m.blocks) return;
      copy_taps(s, chunk, pass, b - 1);  // of the same rows
      norm_and_quantize(own, m.layers[b].attention_norm);
      project(own, 0, m.layers[b]);
    });
    if (!done) return false;
    if (b == m.blocks || (b == m.blocks - 1 && !pass.logits && !pass.best)) return true;  // its K and V are enough
    if (!attention(s, m.layers[b])) return false;
  }
  return true;
}

void decode(const void* argument, Turn* turn) {
  const Decoding& d = *static_cast<const Decoding*>(argument);
  const Model& m = *d.model;
  const Workspace w = lay_out_workspace(m, turn->thread, turn->threads, m.workspace);
  const Stage s = stage_of(m, w, turn, d.pass.rows, d.pass.start);
  const bool starts = run_stage(turn, [&](int chunk) {
    embed(s, chunk, d.pass.ids);
    if (m.progress) advance_states(s, chunk);
  });
  if (!starts) return;
  if (s.rows && !(shares_rows(s) ? run_layers_by_rows(s, d.pass) : run_layers(s, d.pass))) return;
  if (m.progress && d.pass.keep_all) {
    if (!run_stage(turn, [&](int chunk) { shift_histories(s, chunk, s.rows ? s.rows : kept_rows(s)); })) return;
  }
  if (!d.pass.logits && !d.pass.best) return;
  Once ready;
  run_stage(turn, [&](int chunk) {
    if (ready.first()) norm_and_quantize(s, m.norm);
    scan_head(s, chunk, d.pass);
    project_selectors(s, chunk);
  });
}

struct Injection {
  const Model* model;
  const float* taps;
  int32_t rows, start;
};
static_assert(sizeof(Injection) <= MAX_ARGUMENT, "the pool copies it");

void inject_context(const void* argument, Turn* turn) {
  const Injection& in = *static_cast<const Injection*>(argument);
  const Model& m = *in.model;
  const Workspace w = lay_out_workspace(m, turn->thread, turn->threads, m.workspace);
  const Stage s = stage_of(m, w, turn, in.rows, in.start);
  Once quantized, ready;
  const bool fused = run_stage(turn, [&](int chunk) {
    Rows rows = s.scratch.rows;
    if (quantized.first()) quantize_rows(in.taps, in.rows, m.tap_count * m.hidden, &rows);
    const Share panels = share(panels_of(m.fuse), chunk, s);
    product(&m.fuse, &rows, in.rows, panels.begin, panels.end, w.x + (size_t)panels.begin * PANEL, m.hidden);
  });
  if (!fused) return;
  run_stage(turn, [&](int chunk) {
    if (ready.first()) norm_and_quantize(s, m.fuse_norm);
    const Share units = share(m.blocks * 2 * m.kv_heads, chunk, s);
    for (int u = units.begin; u < units.end; u++) {
      const Layer& layer = m.layers[u / (2 * m.kv_heads)];
      const int head = u % (2 * m.kv_heads);
      if (head < m.kv_heads) {
        project_key(s, layer, head);
      } else {
        project_value(s, layer, head - m.kv_heads);
      }
    }
  });
}

}  // namespace

void forward(const Model* model, const Pass* pass, Pool* pool) {
  const Decoding decoding{model, *pass};
  pool_run(pool, decode, &decoding, sizeof decoding);
  if (model->progress) {
    *model->progress = pass->keep_all ? Progress{pass->start + pass->rows, 0} : Progress{pass->start, pass->rows};
  }
  if (model->slots.candidates) return select(*model, *pass, pool_size(pool));
  write_best(*model, *pass, pool_size(pool));
  if (model->slots.markov_w2.n) correct_slots_repeatedly(*model, *pass, pool);
}

void inject(const Model* model, const float* taps, int32_t rows, int32_t start, Pool* pool) {
  const Injection injection{model, taps, rows, start};
  pool_run(pool, inject_context, &injection, sizeof injection);
}

}  // namespace LDF_ISA
}  // namespace ldf
