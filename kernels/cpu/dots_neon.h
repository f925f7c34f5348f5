// Integer dot products with NEON: one instruction multiplies four inputs of a row with four channels; see dots.h.
//
// sdot takes signed numbers: the zero point is subtracted from the codes, once for all rows of a tile.
#pragma once
#include <arm_neon.h>

#include "dots.h"

namespace ldf {
namespace LDF_ISA {

struct Dots : OnePanel {
  // Sixteen sums, four registers of codes and four of activations.
  template <class Codes>
  static constexpr int tile = 4;

  template <int rows, class Codes>
  static void begin() {}

  static void end() {}

  template <int rows, class Codes, int part>
  static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    constexpr int first = part * Codes::quads;
    for (int r = 0; r < rows; r++) out[r] = zero_sums();
    add_sixteen<rows, Codes, first>(codes, x, out);
    if constexpr (Codes::quads == 8) add_sixteen<rows, Codes, first + 4>(codes, x, out);
  }

 private:
  // Four quads, from `quad` on.
  template <int rows, class Codes, int quad>
  static void add_sixteen(const uint8_t* codes, const Inputs& x, Sums* out) {
    int8x16_t inputs[rows];
    for (int r = 0; r < rows; r++) inputs[r] = vld1q_s8(x.row(r) + 4 * quad);
    add_four<rows, Codes, quad>(codes, inputs, out);
    add_four<rows, Codes, quad + 1>(codes, inputs, out);
    add_four<rows, Codes, quad + 2>(codes, inputs, out);
    add_four<rows, Codes, quad + 3>(codes, inputs, out);
  }

  template <int rows, class Codes, int quad>
  static void add_four(const uint8_t* codes, const int8x16_t* inputs, Sums* out) {
    for (int channels = 0; channels < 4; channels++) {
      const uint8x16_t code = four_channels<Codes, quad>(codes + 16 * channels);
      const int8x16_t weights = vreinterpretq_s8_u8(vsubq_u8(code, vdupq_n_u8(Codes::zero)));
      for (int r = 0; r < rows; r++) {
        out[r].v[channels] = vdotq_laneq_s32(out[r].v[channels], weights, inputs[r], quad % 4);
      }
    }
  }

  // The codes of four channels of a quad.
  template <class Codes, int quad>
  static uint8x16_t four_channels(const uint8_t* codes) {
    uint8x16_t code = field<Codes::low, quad, 0>(codes);
    if constexpr (Codes::high > 0) {
      code = vorrq_u8(code, field<Codes::high, quad, Codes::low>(codes + 64 * Codes::low));
    }
    if constexpr (Codes::table != nullptr) code = vqtbl1q_u8(vld1q_u8(Codes::table), code);
    return code;
  }

  // A quad's bits of a plane, moved up to bit `to` of their bytes.
  template <int bits, int quad, int to>
  static uint8x16_t field(const uint8_t* plane) {
    constexpr int from = bit_shift<bits>(quad);
    uint8x16_t packed = vld1q_u8(plane + byte_offset<bits>(quad));
    if constexpr (bits == 8) return packed;
    if constexpr (from > to) packed = vshrq_n_u8(packed, from - to);
    if constexpr (from < to) packed = vshlq_n_u8(packed, to - from);
    return vandq_u8(packed, vdupq_n_u8(((1 << bits) - 1) << to));
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
