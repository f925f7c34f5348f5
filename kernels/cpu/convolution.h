// The convolutions of DFlash 2 over the rows of a block, at the input and the output of a sublayer:
//
//   out[row][c] = sum over i < kernel of (base[side][i][c] + change[row][side][i][c / group]) * x[row - i][c]
//
// where the changes are a matrix product with the sublayer's normed rows. Rows before the block are zero. A group is a
// multiple of 16 channels.
#pragma once
#include "stages.h"

namespace ldf {
namespace LDF_ISA {
namespace {

enum Side { INTO, OUT_OF };

// Returns 16 channels of a row after the convolution. `x` are the row's channels; earlier rows precede at `stride`.
Lanes convolve(const Stage& s, const Convolution& conv, Side side, int row, int channel, const float* x,
               ptrdiff_t stride) {
  const Model& m = s.model;
  const int kernel = m.conv.kernel, groups = m.hidden / m.conv.group;
  const float* base = conv.base + (size_t)side * kernel * m.hidden + channel;
  const float* change = s.w.changes + row * changes_of(m) + side * kernel * groups + channel / m.conv.group;
  Lanes total = splat(0.0f);
  for (int i = 0; i < kernel && i <= row; i++) {
    const Lanes coefficient = add(load(base + (ptrdiff_t)i * m.hidden), splat(change[i * groups]));
    total = fma(load(x - i * stride), coefficient, total);
  }
  return total;
}

// The stage before a sublayer: norms its rows and computes their changes. See `run_stage` for the result.
bool compute_changes(const Stage& s, const Convolution& conv, const float* weight) {
  const Model& m = s.model;
  if (!m.conv.kernel) return true;
  Once ready;
  return run_stage(s.turn, [&](int chunk) {
    if (ready.first()) norm_and_quantize(s, weight);
    const Share rows = share(s.rows, chunk, s);
    for (int r = rows.begin; r < rows.end; r++) {
      const size_t at = (size_t)r * m.hidden;
      norm(s.w.x + at, weight, m.eps, m.hidden, s.w.normed + at);
    }
    const Share panels = share(panels_of(conv.changes), chunk, s);
    float* out = s.w.changes + (size_t)panels.begin * PANEL;
    product(&conv.changes, &s.scratch.rows, s.rows, panels.begin, panels.end, out, changes_of(m));
  });
}

// Quantizes the input of a sublayer into this thread's rows.
void quantize_input(const Stage& s, const Convolution& conv, const float* weight) {
  const int hidden = s.model.hidden;
  if (!s.model.conv.kernel) return norm_and_quantize(s, weight);
  for (int r = 0; r < s.rows; r++) {
    const float* x = s.w.normed + (size_t)r * hidden;
    for (int c = 0; c < hidden; c += 16) store(s.scratch.wide + c, convolve(s, conv, INTO, r, c, x + c, hidden));
    quantize(s.scratch.wide, hidden, row_from(s.scratch.rows, r, hidden));
  }
}

// Adds a sublayer's output, matrix * rows + bias, to x, for a chunk of the channels.
void add_sublayer(const Stage& s, int chunk, const Convolution& conv, const Matrix& matrix, const Rows& rows,
                  const float* bias) {
  if (!s.model.conv.kernel) return add_product(s, chunk, matrix, rows, bias);
  for_each_piece(s, chunk, matrix, rows, [&](int channel, int size) {
    for (int r = 0; r < s.rows; r++) {
      float *y = s.scratch.narrow + (size_t)r * CHUNK, *x = s.w.x + (size_t)r * s.model.hidden + channel;
      if (bias) add_bias(y, bias + channel, size);
      for (int c = 0; c < size; c += 16) {
        store(x + c, add(load(x + c), convolve(s, conv, OUT_OF, r, channel + c, y + c, CHUNK)));
      }
    }
  });
}

}  // namespace
}  // namespace LDF_ISA
}  // namespace ldf
