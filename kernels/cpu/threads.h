// Threads that compute a pass together, stage by stage, on processors that others use too.
//
// A stage is cut into as many chunks as there are threads. Each thread takes its own chunk first and then whichever
// nobody has begun; a stage is over when all chunks are done. So a thread that the system has put aside, or that is
// still waking up, holds nobody up unless it is in the middle of a chunk. Threads spin within a pass and sleep outside.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace ldf {

constexpr int MAX_STAGES = 8192;  // of a pass
constexpr int MAX_ARGUMENT = 128;  // bytes

struct Pool;

// A thread's place in a pass. A thread may come late, even after the end: it must touch nothing but this, and its copy
// of the argument, before it has taken a chunk.
struct Turn {
  Pool* pool;
  uint32_t pass;
  int thread, threads, stage;
};

using Work = void (*)(const void* argument, Turn* turn);

// `cpus`: the logical CPUs that the pool's own threads may run on, none: any. Null where no thread could be made.
Pool* pool_new(int threads, const int32_t* cpus, int count);
void pool_delete(Pool* pool);
int pool_size(const Pool* pool);

// Run `work` on a copy of the argument; returns when the caller, which takes part, returns from it.
void pool_run(Pool* pool, Work work, const void* argument, size_t size);

// Within `work`: a chunk of the stage to compute now, or -1 when all are taken. `pool_done` after each.
int pool_take(Turn* turn);
void pool_done(Turn* turn);
// Wait until all chunks of the stage are done and go to the next; false where the pass has ended without this thread.
bool pool_next(Turn* turn);

}  // namespace ldf
