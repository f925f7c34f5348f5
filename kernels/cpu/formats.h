// Data of the kernels: packed weights, quantized activations, KV cache. Plain structs, no code.
//
// Weights are stored in panels of 16 output channels and groups of 32 inputs. A quad is four inputs of all channels,
// the unit that the integer dot products of all processors read. The codes of a group are unsigned and stored in one or
// two planes; the second plane holds the higher bits. A plane of b bits is b times 64 bytes [16 channels][4 inputs]; a
// byte has the codes of 8 / b quads, the first quad in the lowest bits:
//   8 bits           512 bytes  one quad after another
//   4 bits           256 bytes  two quads in each 64 bytes, the even quad in the low nibbles
//   4 bits and 1     320 bytes  then 64 bytes, in which bit q of each byte is the fifth bit of quad q
//   2 bits and 1     192 bytes  four quads in each 64 bytes, then 64 bytes with the third bits as above
//   2 bits           128 bytes
// packing.py writes this layout, without rounding if the file has the format of `Kind`.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace ldf {

constexpr int PANEL = 16;   // output channels
constexpr int GROUP = 32;   // inputs that share a scale
constexpr int SUPER = 256;  // inputs that share a super-scale
constexpr int MAX_ROWS = 64;  // tokens of a pass
constexpr int PART = 512;  // keys whose softmax is computed alone, so that threads can share a head's keys

enum Kind : int32_t {
  Q8_0 = 0,
  Q4_0 = 1,
  Q4_K = 2,
  Q6_K = 3,
  Q4_1 = 4,
  Q5_0 = 5,
  Q5_1 = 6,
  Q5_K = 7,
  Q3_K = 8,
  Q2_K = 9,
  IQ4_NL = 10,
  IQ4_XS = 11,
  MXFP4 = 12
};

// A matrix [n, k], n padded with zeros to whole panels; k is a multiple of GROUP, and of SUPER for the K-types and
// IQ4_XS. A weight, and its scales in a group of a panel:
//   Q8_0    (code - 128) * scale                  float16 [16]
//   Q4_0    (code - 8) * scale                    float16 [16]
//   Q5_0    (code - 16) * scale                   float16 [16]
//   IQ4_NL  (IQ4_CODES[code] - 128) * scale       float16 [16]
//   MXFP4   (E2M1_CODES[code] - 12) * 2^(e - 128) uint8 [16], below 255
//   Q4_1    code * scale + m                      float16 [16]
//   Q5_1    code * scale + m                      float16 [16]
//   Q4_K    code * (d * scale) - dmin * minimum   uint8 [2: scale, minimum][16]
//   Q5_K    code * (d * scale) - dmin * minimum   uint8 [2: scale, minimum][16]
//   IQ4_XS  (IQ4_CODES[code] - 128) * (d * scale) int8 [16]
//   Q6_K    (code - 32) * (d * scale)             int8 [2: inputs 0-15, 16-31][16]
//   Q3_K    (code - 4) * (d * scale)              int8 [2: inputs 0-15, 16-31][16]
//   Q2_K    code * (d * scale) - dmin * minimum   uint8 [2: inputs 0-15, 16-31][16], low nibble: scale, high: minimum
// Codes have as many bits as their type's name says, except that Q6_K's codes, which are below 64, have 8.
struct Matrix {
  int32_t kind, n, k;
  const uint8_t* codes;   // [panels][groups][bytes of a group]
  const uint8_t* scales;  // [panels][groups][scales of a group, see above]
  // float16. Q4_1, Q5_1: m [panels][groups][16]. Q4_K, Q5_K, Q2_K: [panels][k / 256][2: d, dmin][16]. IQ4_XS, Q6_K,
  // Q3_K: d [panels][k / 256][16]. Null if there are none.
  const uint16_t* supers;
};

// Codes by nibble for types with unevenly spaced values. Their zero points are 128 and 12.
constexpr uint8_t IQ4_CODES[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t E2M1_CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// Activations of some tokens (rows), quantized row by row, group by group: x = code * scale.
struct Rows {
  int8_t* codes;   // [rows][k], -127 to 127
  float* scales;   // [rows][k / 32]; NaN if the group was not finite
  int32_t* sums;   // [rows][k / 16]: the sum of 16 codes
  float* totals;   // [rows][k / 32]: the sum of 32 codes, times their scale
};

// KV cache of one layer and one key-value head: float16, or keys in 8 bits and values in 8 or 4. In codes, two
// dimensions of a key, and two values, are adjacent. The nibbles of a byte belong to a dimension and the eighth after it.
struct Cache {
  void* keys;           // float16 [capacity / 16][head_dim][16 keys], or int8 [capacity / 16][head_dim / 2][16 keys][2]
  void* values;         // float16 [capacity][head_dim], int8 [capacity / 2][head_dim][2 values], or nibbles
                        // [capacity / 2][head_dim / 16][8][2 values], indices of VALUE_CODES
  float* key_scales;    // [capacity / 16][head_dim / 32][16 keys]; null in float16. NaN if a key was not finite
  float* value_scales;  // [capacity]
  int32_t value_bits;   // 16 (then keys are float16, too), 8 or 4
};

// Codes of values in 4 bits, denser near zero, where most numbers are; 127 would be the largest number of a vector.
constexpr int8_t VALUE_CODES[16] = {6, 18, 30, 43, 57, 73, 93, 120, -6, -18, -30, -43, -57, -73, -93, -120};

}  // namespace ldf
