// Integer dot products with AMX: one instruction multiplies a group of all rows with 16 channels; see dots.h.
//
// A group's sums must be stored from their tile and scaled in vectors, so tiles gain less than their peak suggests.
// Cycles on Sapphire Rapids for a group of r rows, with two vector products, two loads and one store per cycle:
//   AVX512-VNNI   8 r products: 4 r
//   tiles         8 for the codes, r each to load activations, to multiply and to store sums: 3 r + 8 without overlap
// From eight rows on tiles are at least as fast, and their steps partly overlap. Groups of two parts have two sets of
// sums: no tiles.
#pragma once
#include "dots_avx512vnni.h"

// Tile numbers: the intrinsics need preprocessor constants.
#define LDF_SUMS 0
#define LDF_INPUTS 1
#define LDF_CODES 2

namespace ldf {
namespace LDF_ISA {

struct Dots : OnePanel {
  static constexpr int MIN_TILE_ROWS = 8;

  template <class Codes>
  static constexpr int tile = Codes::parts == 1 ? 16 : VectorDots::tile<Codes>;

  template <int rows, class Codes>
  static constexpr bool tiles = Codes::parts == 1 && rows >= MIN_TILE_ROWS;

  template <int rows, class Codes>
  static void begin() {
    if (!tiles<rows, Codes> || configured == rows) return;
    Shapes shapes;
    shapes.set(LDF_SUMS, rows, 16 * 4);
    shapes.set(LDF_INPUTS, rows, GROUP);
    shapes.set(LDF_CODES, GROUP / 4, 16 * 4);
    tiles_read();
    _tile_loadconfig(&shapes);
    configured = rows;
  }

  static void end() {
    if (configured) _tile_release();
    configured = 0;
  }

  template <int rows, class Codes, int part>
  static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    if constexpr (!tiles<rows, Codes>) {
      VectorDots::dot<rows, Codes, part>(codes, x, out);
    } else {
      alignas(64) int32_t sums[16 * rows];
      alignas(64) int8_t weights[GROUP * 16];
      unpack<Codes>(codes, weights);
      tiles_read();
      _tile_loadd(LDF_CODES, weights, 64);
      _tile_loadd(LDF_INPUTS, x.codes, x.k);
      _tile_zero(LDF_SUMS);
      _tile_dpbssd(LDF_SUMS, LDF_INPUTS, LDF_CODES);
      _tile_stored(LDF_SUMS, sums, 64);
      for (int r = 0; r < rows; r++) out[r] = load_sums(sums + 16 * r);
    }
  }

 private:
  // GCC does not know that tile instructions read memory; this completes earlier writes.
  static void tiles_read() { __asm__ volatile("" ::: "memory"); }

  struct Shapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int tile_rows, int tile_bytes) {
      rows[tile] = static_cast<uint8_t>(tile_rows);
      bytes[tile] = static_cast<uint16_t>(tile_bytes);
    }
  };

  // Unpacks codes minus their zero point, which fits into signed bytes.
  template <class Codes>
  static void unpack(const uint8_t* codes, int8_t* weights) {
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(Codes::zero));
    store<Codes, 0>(codes, zero, weights);
  }

  template <class Codes, int quad>
  static void store(const uint8_t* codes, __m512i zero, int8_t* weights) {
    _mm512_store_si512(weights + 64 * quad, _mm512_sub_epi8(VectorDots::unpacked<Codes, quad>(codes), zero));
    if constexpr (quad + 1 < GROUP / 4) store<Codes, quad + 1>(codes, zero, weights);
  }

  inline static thread_local int configured = 0;  // rows of this thread's tiles; 0: none
};

}  // namespace LDF_ISA
}  // namespace ldf
