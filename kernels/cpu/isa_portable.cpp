#define LDF_ISA portable
#include "kernels.inc"
