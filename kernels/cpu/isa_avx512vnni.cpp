#define LDF_ISA avx512vnni
#include "kernels.inc"
