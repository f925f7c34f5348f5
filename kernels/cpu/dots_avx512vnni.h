// Integer dot products with AVX512-VNNI: one instruction multiplies four inputs of a row with 16 channels; see dots.h.
//
// vpdpbusd takes unsigned codes and signed activations. The start value of a sum subtracts the zero point. All rows of
// a tile are processed quad by quad: sums with long dependency chains would fill the processor's queues.
#pragma once
#include <immintrin.h>

#include "dots.h"

namespace ldf {
namespace LDF_ISA {

struct Dots {
  // Totals and sums of eight rows take 16 of the 32 registers, and sums of halves of a group eight more.
  template <class Codes>
  static constexpr int tile = 8;

  // Two panels share each load of an input: with one panel, loads are the bottleneck.
  template <class Codes>
  static constexpr int wide_tile = Codes::parts == 1 ? 4 : 0;
  static constexpr int MIN_WIDE_ROWS = 3;  // fewer wait for memory

  template <int rows, class Codes>
  static void begin() {}

  static void end() {}

  template <int rows, class Codes, int part>
  LDF_INLINE static void dot(const uint8_t* codes, const Inputs& x, Sums* out) {
    __m512i sums[rows];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) sums[r] = start<Codes, part>(x, r);
    add_quads<rows, Codes, part * Codes::quads>(codes, x, sums);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) out[r] = {sums[r]};
  }

  template <int rows, class Codes>
  LDF_INLINE static void wide_dot(const uint8_t* codes, ptrdiff_t distance, const Inputs& x, Sums* out) {
    __m512i sums[2 * rows];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) sums[r] = sums[rows + r] = start<Codes, 0>(x, r);
    add_quads_of_two<rows, Codes, 0>(codes, distance, x, sums);
#pragma GCC unroll 16
    for (int i = 0; i < 2 * rows; i++) out[i] = {sums[i]};
  }

  // A quad's codes as bytes.
  template <class Codes, int quad>
  static __m512i unpacked(const uint8_t* codes) {
    __m512i code = field<Codes::low, quad, 0>(codes);
    if constexpr (Codes::high > 0) {
      code = _mm512_or_si512(code, field<Codes::high, quad, Codes::low>(codes + 64 * Codes::low));
    }
    if constexpr (Codes::table != nullptr) code = _mm512_shuffle_epi8(table<Codes>(), code);
    return code;
  }

 private:
  typedef int32_t Four __attribute__((may_alias, aligned(1)));

  static const Four& four(const Inputs& x, int r, int quad) {
    return *reinterpret_cast<const Four*>(x.row(r) + 4 * quad);
  }

  // The products of four inputs with the channels' codes, for all quads from `quad` to the end of its part. GCC does
  // not fold the broadcast of _mm512_dpbusd_epi32 into the instruction, which makes two instructions of each.
  template <int rows, class Codes, int quad>
  LDF_INLINE static void add_quads(const uint8_t* codes, const Inputs& x, __m512i* sums) {
    const __m512i code = unpacked<Codes, quad>(codes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums[r]) : "v"(code), "m"(four(x, r, quad)));
    }
    if constexpr ((quad + 1) % Codes::quads) add_quads<rows, Codes, quad + 1>(codes, x, sums);
  }

  template <int rows, class Codes, int quad>
  LDF_INLINE static void add_quads_of_two(const uint8_t* codes, ptrdiff_t distance, const Inputs& x, __m512i* sums) {
    const __m512i first = unpacked<Codes, quad>(codes), second = unpacked<Codes, quad>(codes + distance);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const __m512i input = _mm512_set1_epi32(four(x, r, quad));
      __asm__("vpdpbusd %2, %1, %0" : "+v"(sums[r]) : "v"(first), "v"(input));
      __asm__("vpdpbusd %2, %1, %0" : "+v"(sums[rows + r]) : "v"(second), "v"(input));
    }
    if constexpr ((quad + 1) % Codes::quads) add_quads_of_two<rows, Codes, quad + 1>(codes, distance, x, sums);
  }

  // GCC would broadcast through memory, at the cost of another load.
  template <class Codes, int part>
  static __m512i start(const Inputs& x, int r) {
    if constexpr (Codes::zero == 0) return _mm512_setzero_si512();
    __m512i all;
    __asm__("vpbroadcastd %1, %0" : "=v"(all) : "r"(-Codes::zero * x.sum<Codes, part>(r)));
    return all;
  }

  // A quad's bits of a plane, moved up to bit `to` of their bytes.
  template <int bits, int quad, int to>
  static __m512i field(const uint8_t* plane) {
    constexpr int from = bit_shift<bits>(quad);
    __m512i packed = _mm512_loadu_si512(plane + byte_offset<bits>(quad));
    if constexpr (bits == 8) return packed;
    if constexpr (from > to) packed = _mm512_srli_epi16(packed, from - to);
    if constexpr (from < to) packed = _mm512_slli_epi16(packed, to - from);
    return _mm512_and_si512(packed, _mm512_set1_epi8(((1 << bits) - 1) << to));
  }

  template <class Codes>
  static __m512i table() {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(Codes::table)));
  }
};

}  // namespace LDF_ISA
}  // namespace ldf
