// What the processor that we run on can do.
#pragma once

namespace ldf {

// Whether the functions of an instruction set, by its name in the tables of kernels.h, can run here: the processor has
// it and the operating system keeps its registers. Linux lends the tiles of AMX only to a process that asks: asking
// about "amx" asks for them, for all threads of the process.
bool cpu_has(const char* instruction_set);

}  // namespace ldf
