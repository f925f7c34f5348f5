// Public interface: a table of functions per instruction set, and structs of a model. Rows of a pass are its tokens.
#pragma once
#include "formats.h"
#include "threads.h"

namespace ldf {

// Heads of gated delta nets, which all layers share; v_heads is 0 in a model without delta nets. Value head h uses key
// head h % k_heads.
struct DeltaShape {
  int32_t k_heads, v_heads, k_dim, v_dim, kernel;  // kernel: inputs of the convolution
};

// A layer of gated delta net (see delta_net.h), with keys = k_heads * k_dim, values = v_heads * v_dim and
// mixed = 2 * keys + values, including the states of a sequence.
struct DeltaNet {
  Matrix mixed, gate, alpha, beta;  // [mixed, hidden], [values, hidden], [v_heads, hidden], [v_heads, hidden]
  const float* conv;                // [kernel][mixed]
  const float *rate, *shift;        // [v_heads] parameters of the decay
  const float* norm;                // [v_dim]
  float* state;                     // [v_heads][v_dim / 16][k_dim][16] at `Progress.base`
  float* history;                   // [kernel - 1 + MAX_ROWS][mixed] inputs of the convolution, of tokens around `base`
  float *decays, *betas;            // [MAX_ROWS][v_heads] of the tokens from `base` on
};

// The convolutions of DFlash 2 at the input and the output of a sublayer (see convolution.h).
struct Convolution {
  Matrix changes;     // [2 * kernel * hidden / group, hidden]
  const float* base;  // [2][kernel][hidden]
};

// Sizes of `Convolution`; kernel is 0 in a model without convolutions.
struct ConvolutionShape {
  int32_t kernel, group;  // rows of a convolution, the newest included; channels that share a change
};

// Heads that make a drafter's slots (draft positions) depend on the previous token: the Markov head of DSpark or the
// selector of DFlash 2 (see slots.h). Missing parts are null, and their matrices have no rows.
struct SlotHeads {
  Matrix markov_w1, markov_w2;  // [vocabulary, rank], [rows of the head, rank]
  const float* confidence;      // [hidden + rank]; null: the softmax probability is the confidence
  float confidence_bias;
  Matrix predecessor, successor, selector;  // [vocabulary, rank], [vocabulary, rank], [rank, hidden]
  int32_t candidates;                       // per slot, for the selector; 0: no selector
  int32_t first;                            // first slot that proposes a token
  const int32_t* tokens;                    // token ids of the head's rows; null: row i is token i
};

// Progress of delta-net states: they precede token `base`, and can advance by any prefix of the `rows` tokens after it.
struct Progress {
  int32_t base, rows;
};

// One layer of a decoder. The matrices of a mixture of experts are in sequence, each padded to whole panels.
struct Layer {
  const float *attention_norm, *query_norm, *key_norm, *mlp_norm;  // query_norm and key_norm: null if absent
  Matrix query, key, value, output, gate, up, down;                // in a mixture, gate, up and down of expert 0
  const float* router;                                             // [experts][hidden]; null in a dense layer
  const float *query_bias, *key_bias, *value_bias, *output_bias;   // these and the following: null if absent
  const float *router_bias, *gate_bias, *up_bias, *down_bias;      // [experts][...]
  const float* sinks;  // [heads] attention sinks: a score without a value
  Matrix shared_gate, shared_up, shared_down;  // matrices of the shared expert
  const float* shared_router;                  // [hidden]
  const DeltaNet* delta;                       // replaces attention, except `output`; null: attention
  Convolution attention_conv, mlp_conv;
  Cache cache;     // caches of all key-value heads, one after another
  int32_t causal;  // whether a row sees no later rows
  int32_t window;  // a row sees keys at distances below this; 0: all
};

// A decoder, or a drafter that uses its target's embedding and head. It must outlive the threads that run it.
struct Model {
  int32_t blocks, hidden, heads, kv_heads, head_dim, inner;  // blocks: layers; inner: width of the MLP or an expert
  int32_t experts, chosen, normalise;                        // all 0 in a dense model
  int32_t shared;                                            // width of the shared expert; 0: none
  int32_t rotary;                                            // leading channels of a head that RoPE rotates
  int32_t gated;  // whether a head's query is followed by a gate of its output, [heads][2][head_dim]
  int32_t vocabulary, capacity;                              // capacity: positions of the KV cache
  float eps;
  float swiglu_limit;  // limit of gate and up in `swiglu_clamped`; 0: use `swiglu`
  float embedding_scale, logit_scale;                        // factors of embeddings and logits
  float softcap;                                             // logits become softcap * tanh(logit / softcap); 0: no cap
  const float *cosines, *sines;                              // [capacity][rotary / 2]
  Matrix embedding, head;
  const float* norm;
  const Layer* layers;
  const int32_t* taps;  // layers whose outputs are features, the input of a drafter
  int32_t tap_count;
  Matrix fuse;             // a drafter's projection of features, [hidden, tap_count * hidden]; n is 0 in a target
  const float* fuse_norm;  // weights of the norm after `fuse`
  uint8_t* workspace;      // `workspace_bytes`, aligned to 64
  DeltaShape delta;
  Progress* progress;      // null without delta nets
  ConvolutionShape conv;
  SlotHeads slots;
};

// One pass of `rows` tokens at positions start, start + 1, ...; outputs that are null are not computed. With delta nets
// `start` is 0 or reachable from `Progress`, and 0 rows only advance the states to it.
struct Pass {
  const int32_t* ids;
  int32_t rows, start;
  float* taps;        // [rows][tap_count * hidden]
  float* logits;      // [rows][vocabulary]; required by a Markov head, before its correction
  int32_t* best;      // [rows] likeliest token; ties go to the lowest
  float* confidence;  // [rows] softmax probability of `best`, or the slot heads' output; they require both arrays
  int32_t* finite;   // [rows] 1 if no logit is NaN or +infinity; requires best, excludes confidence
  int32_t keep_all;      // all rows are known to be accepted: the states of delta nets advance in this pass
};

struct Kernels {
  const char* name;
  // Quantizes rows x [rows][k].
  void (*quantize)(const float* x, int32_t rows, int32_t k, Rows* out);
  // out[r][c] = x[r] times channel 16 * first_panel + c, for panels first_panel up to last_panel; stride in floats.
  // Writes whole panels.
  void (*product)(const Matrix* weights, const Rows* x, int32_t rows, int32_t first_panel, int32_t last_panel,
                  float* out, ptrdiff_t stride);
  // out[i] = softmax(q[i] keys^T * scale) values over keys begin[i] up to end[i]; strides in floats.
  void (*attend)(const Cache* cache, const float* q, ptrdiff_t q_stride, const int32_t* begin, const int32_t* end,
                 int32_t rows, int32_t head_dim, float scale, float* out, ptrdiff_t out_stride);
  void (*put_key)(const Cache* cache, int32_t head_dim, int32_t position, const float* key);
  void (*put_value)(const Cache* cache, int32_t head_dim, int32_t position, const float* value);
  void (*norm)(const float* x, const float* weight, float eps, int32_t size, float* out);
  void (*rotate)(float* x, const float* cosines, const float* sines, int32_t head_dim);
  void (*swiglu)(const float* gate, const float* up, int32_t size, float* out);
  void (*swiglu_clamped)(const float* gate, const float* up, float limit, int32_t size, float* out);
  // Runs a pass and writes the KV cache entries of its rows.
  void (*forward)(const Model* model, const Pass* pass, Pool* pool);
  // Writes a drafter's KV cache entries at positions start, ... from the target's features [rows][tap_count * hidden].
  void (*inject)(const Model* model, const float* taps, int32_t rows, int32_t start, Pool* pool);
  // Multiplies `count` groups of 32 inputs with 16 channels, all in the first-level cache, to measure peak speed.
  int32_t (*peak)(int64_t count);
};

extern const Kernels portable_kernels, avx2_kernels, avxvnni_kernels, avx512vnni_kernels, neon_kernels;

}  // namespace ldf
