// Function table of this instruction set; see kernels.h.
#pragma once

#define LDF_JOIN_(a, b) a##b
#define LDF_JOIN(a, b) LDF_JOIN_(a, b)
#define LDF_TEXT_(a) #a
#define LDF_TEXT(a) LDF_TEXT_(a)

namespace ldf {

const Kernels LDF_JOIN(LDF_ISA, _kernels) = {
    LDF_TEXT(LDF_ISA), LDF_ISA::quantize_rows, LDF_ISA::product, LDF_ISA::attend, LDF_ISA::put_key, LDF_ISA::put_value,
    LDF_ISA::norm, LDF_ISA::rotate, LDF_ISA::swiglu, LDF_ISA::swiglu_clamped, LDF_ISA::forward, LDF_ISA::inject,
    LDF_ISA::peak,
};

}  // namespace ldf
