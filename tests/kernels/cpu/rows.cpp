// C functions for test_rows.py: functions of rows.h and simd.h that are not in the table of kernels.
#include "rows.h"

using namespace ldf::LDF_ISA;

extern "C" {

void exponentials(const float* x, int32_t count, float* out) {
  for (int32_t i = 0; i < count; i += 16) store(out + i, exponential(load(x + i)));
}

void to_halves(const float* x, int32_t count, uint16_t* out) {
  for (int32_t i = 0; i < count; i += 16) store_half(out + i, load(x + i));
}

void from_halves(const uint16_t* x, int32_t count, float* out) {
  for (int32_t i = 0; i < count; i += 16) store(out + i, load_half(x + i));
}

void best(const float* logits, int32_t first, int32_t count, Best* out) { *out = best_of(logits, first, count); }

void likeliest(const float* logits, int32_t first, int32_t count, Best* out) {
  *out = likeliest_of(logits, first, count);
}

void merge(const Best* a, const Best* b, Best* out) { *out = better(*a, *b); }
}
