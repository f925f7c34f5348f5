// Integer dot products in portable C++; see dots.h.
#pragma once
#include "dots.h"

namespace ldf {
namespace LDF_ISA {

struct Dots : OnePanel {
  template <class Codes>
  static constexpr int tile = 1;

  template <int rows, class Codes>
  static void begin() {}

  static void end() {}

  template <int rows, class Codes, int part>
  static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    for (int r = 0; r < rows; r++) {
      int32_t total[PANEL] = {};
      for (int q = 0; q < Codes::quads; q++) {
        const int quad = part * Codes::quads + q;
        add<Codes>(codes, quad, x.row(r) + 4 * quad, total);
      }
      out[r] = load_sums(total);
    }
  }

 private:
  template <class Codes>
  static void add(const uint8_t* codes, int quad, const int8_t* x, int32_t* total) {
    for (int channel = 0; channel < PANEL; channel++) {
      for (int i = 0; i < 4; i++) total[channel] += (code_of<Codes>(codes, quad, 4 * channel + i) - Codes::zero) * x[i];
    }
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
