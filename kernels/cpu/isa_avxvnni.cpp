#define LDF_ISA avxvnni
#include "kernels.inc"
