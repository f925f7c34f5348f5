// Sixteen floats (`Lanes`) and sixteen 32-bit integers (`Sums`), with the same results on every instruction set, bit by
// bit: all float code is written once with them. Only the bits of a NaN may differ.
//
//   fma(a, b, c)          a * b + c, rounded once
//   max(a, b), min(a, b)  a > b ? a : b, a < b ? a : b; so b if either is NaN
//   sum(x), maximum(x)    over all lanes, always as a tree: lane i and lane i + 8, then + 4, + 2, + 1
//   inside(x, f, l, y)    lanes f up to l of x, the other lanes of y
//   load_half, store_half float16, rounded to nearest even
//   to_int(x)             rounded to nearest even; |x| < 2^22, otherwise undefined
//   power_of_two(n)       2^n; -126 <= n <= 127; 0 for -127, otherwise undefined
//   magnitude(x)          the bits of |x|, whose order as integers is that of the floats, inf and NaN last
//   narrow(to, x)         stores sixteen int8 or int16, which x is within
//   widen(from)           loads sixteen int8 or uint8
//   low_nibbles(x), high_nibbles(x)  the lowest four bits, and the four above them; 0 <= x <= 255
//
// `Pairs` are sixteen pairs of int16:
//
//   load_pairs(from)      loads sixteen pairs of int8
//   load_pairs(from, table)  loads sixteen pairs of nibbles, each an index of int8 [16]: eight pairs from the low
//                         nibbles of 16 bytes, then eight from the high ones
//   add_dots(c, x, pair)  c + the dot product of each pair of x with a pair of int16 in memory; none is -32768
#pragma once
#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#elif defined(__ARM_NEON)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif
