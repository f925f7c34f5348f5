// Features of the processor.
#pragma once

namespace ldf {

// Returns whether the functions of an instruction set, by its name in the tables of kernels.h, can run here: the
// processor has it and the operating system saves its registers. Linux grants the tiles of AMX to a process only on
// request: a call for "amx" requests them for all threads of the process.
bool cpu_has(const char* instruction_set);

}  // namespace ldf
