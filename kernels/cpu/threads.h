// A thread pool that computes a pass stage by stage, on processors that other programs use too.
//
// A stage has as many chunks as there are threads. Each thread takes its own chunk first, then any chunk that has not
// been started; a stage ends when all chunks are done. So a thread that is preempted or still waking up delays the
// others only if it is in the middle of a chunk. Threads spin during a pass and for 0.3 ms after it, then sleep.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace ldf {

constexpr int MAX_STAGES = 8192;  // in a pass
constexpr int MAX_ARGUMENT = 128;  // bytes of an argument of `pool_run`

struct Pool;

// Position of a thread in a pass. A thread may join late, even after the pass has ended: before it takes a chunk, it
// may use only its `Turn` and its copy of the argument.
struct Turn {
  Pool* pool;
  uint32_t pass;
  int thread, threads, stage;
};

using Work = void (*)(const void* argument, Turn* turn);

// Starts a pool whose threads run on the logical CPUs `cpus` (empty: any). Returns null if a thread cannot be
// started.
Pool* pool_new(int threads, const int32_t* cpus, int count);
void pool_delete(Pool* pool);
int pool_size(const Pool* pool);

// Runs `work` on a copy of the argument; returns when the calling thread, which takes part, has finished.
void pool_run(Pool* pool, Work work, const void* argument, size_t size);

// Within `work`: takes a chunk of the stage, or -1 if all are taken. Call `pool_done` after each chunk.
int pool_take(Turn* turn);
void pool_done(Turn* turn);
// Waits until all chunks of the stage are done, and moves on; false if the pass has ended without this thread.
bool pool_next(Turn* turn);

}  // namespace ldf
