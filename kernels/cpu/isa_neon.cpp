#define LDF_ISA neon
#include "kernels.inc"
