// Integer dot products in plain C++. What every instruction set promises is written in dots.h.
#pragma once
#include "dots.h"

namespace ldf {
namespace LDF_ISA {

struct Dots {
  template <int bits>
  static constexpr int tile = 1;

  template <int rows, int bits>
  static void begin() {}

  static void end() {}

  template <int rows, int bits, int zero>
  static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    for (int r = 0; r < rows; r++) {
      int32_t total[PANEL] = {};
      for (int quad = 0; quad < QUADS<bits>; quad++) add<bits, zero>(codes, quad, x.row(r) + 4 * quad, total);
      out[r] = load_sums(total);
    }
  }

 private:
  template <int bits, int zero>
  static void add(const uint8_t* codes, int quad, const int8_t* x, int32_t* total) {
    const uint8_t* place = codes + 64 * (bits == 4 ? quad / 2 : quad);
    for (int channel = 0; channel < PANEL; channel++) {
      for (int i = 0; i < 4; i++) {
        const int packed = place[4 * channel + i];
        const int code = bits == 4 ? (quad % 2 ? packed >> 4 : packed & 15) : packed;
        total[channel] += (code - zero) * x[i];
      }
    }
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
