// Features of the processor.
#pragma once

namespace ldf {

// Returns whether the functions of an instruction set, by its name in the tables of kernels.h, can run here: the
// processor has it and the operating system saves its registers.
bool cpu_has(const char* instruction_set);

}  // namespace ldf
