// Integer dot products with NEON: one instruction multiplies four inputs of a row with four channels; see dots.h.
//
// sdot takes signed numbers: the zero point is taken off the codes, once for all rows of a tile.
#pragma once
#include <arm_neon.h>

#include "dots.h"

namespace ldf {
namespace LDF_ISA {

struct Dots {
  // Sixteen sums, four registers of codes and four of activations.
  template <int bits>
  static constexpr int tile = 4;

  template <int rows, int bits>
  static void begin() {}

  static void end() {}

  template <int rows, int bits, int zero>
  static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    for (int r = 0; r < rows; r++) out[r] = zero_sums();
    sixteen<rows, bits, zero>(codes, x, 0, out);
    if (bits != 6) sixteen<rows, bits, zero>(codes + (bits == 4 ? 128 : 256), x, 16, out);
  }

 private:
  // Four quads, from `input` on.
  template <int rows, int bits, int zero>
  static void sixteen(const uint8_t* codes, const Inputs& x, int input, Sums* out) {
    int8x16_t inputs[rows];
    for (int r = 0; r < rows; r++) inputs[r] = vld1q_s8(x.row(r) + input);
    four<rows, bits, zero, 0>(codes, inputs, out);
    four<rows, bits, zero, 1>(codes, inputs, out);
    four<rows, bits, zero, 2>(codes, inputs, out);
    four<rows, bits, zero, 3>(codes, inputs, out);
  }

  template <int rows, int bits, int zero, int quad>
  static void four(const uint8_t* codes, const int8x16_t* inputs, Sums* out) {
    for (int channels = 0; channels < 4; channels++) {
      const uint8x16_t packed = vld1q_u8(codes + 64 * (bits == 4 ? quad / 2 : quad) + 16 * channels);
      const uint8x16_t code = bits != 4 ? packed : quad % 2 ? vshrq_n_u8(packed, 4) : vandq_u8(packed, vdupq_n_u8(15));
      const int8x16_t weights = vreinterpretq_s8_u8(vsubq_u8(code, vdupq_n_u8(zero)));
      for (int r = 0; r < rows; r++) out[r].v[channels] = vdotq_laneq_s32(out[r].v[channels], weights, inputs[r], quad);
    }
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
