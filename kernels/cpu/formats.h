// What the kernels work on: packed weights, quantized activations, keys and values. Plain structs, no code.
//
// Weights lie in panels of 16 output channels and groups of 32 inputs, four inputs of a channel side by side, which
// is the order that the integer dot products of every processor here read. A group's codes are unsigned:
//   8 bits: [8 quads][16 channels][4 inputs]                    512 bytes
//   4 bits: [4 pairs of quads][16 channels][4 inputs]           256 bytes; the low nibble is of the even quad
// The numbers of a file are kept exactly, whatever the format.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace ldf {

constexpr int PANEL = 16;   // output channels
constexpr int GROUP = 32;   // inputs that share a scale
constexpr int SUPER = 256;  // inputs that share a super-scale
constexpr int MAX_ROWS = 64;

enum Kind : int32_t { Q8_0 = 0, Q4_0 = 1, Q4_K = 2, Q6_K = 3, Q4_1 = 4 };

// A matrix [n, k], n padded with zeros to whole panels; k is a multiple of GROUP, of SUPER for Q4_K and Q6_K.
// A weight is   Q8_0 (code - 128) * scale              Q4_0 (code - 8) * scale
//               Q4_K code * (d * scale) - dmin * minimum      Q6_K (code - 32) * (d * scale), 8-bit codes below 64
//               Q4_1 code * scale + m
struct Matrix {
  int32_t kind, n, k;
  const uint8_t* codes;  // [panels][groups][512 or 256]
  // Q8_0, Q4_0, Q4_1: float16 [panels][groups][16]. Q4_K: uint8 [panels][groups][2: scale, minimum][16].
  // Q6_K: int8 [panels][groups][2: inputs 0-15, 16-31][16].
  const uint8_t* scales;
  // float16. Q4_K: [panels][k / 256][2: d, dmin][16]. Q6_K: [panels][k / 256][16]. Q4_1: m [panels][groups][16].
  // Null if there are none.
  const uint16_t* supers;
};

// Activations quantized row by row, group by group: x = code * scale.
struct Rows {
  int8_t* codes;   // [rows][k], -127 to 127
  float* scales;   // [rows][k / 32]; NaN where the group was not finite
  int32_t* sums;   // [rows][k / 16]: of 16 codes
  float* totals;   // [rows][k / 32]: of 32 codes, times their scale
};

// Keys and values of one layer and one key-value head, float16.
struct Cache {
  uint16_t* keys;    // [capacity / 16][head_dim][16 keys]
  uint16_t* values;  // [capacity][head_dim]
};

}  // namespace ldf
