#define LDF_ISA avx2
#include "kernels.inc"
