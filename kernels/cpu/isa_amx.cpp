#define LDF_ISA amx
#include "kernels.inc"
