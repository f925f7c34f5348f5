#include "threads.h"

#include <string.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

namespace ldf {

namespace {

constexpr int MAX_SPINS = 4096;  // pauses before a waiting thread yields: about 0.1 ms
// The next pass often starts as soon as tokens are accepted; a sleeping thread would join it late.
constexpr auto SPIN_AFTER_PASS = std::chrono::microseconds(300);
constexpr int WORDS = MAX_ARGUMENT / 8;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void run_on(const std::vector<int32_t>& cpus) {
#ifdef __linux__
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int32_t cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  sched_setaffinity(0, sizeof set, &set);  // on failure the thread runs on any CPU
#else
  (void)cpus;
#endif
}

bool before(uint32_t a, uint32_t b) { return (int32_t)(a - b) < 0; }

// For one chunk, by stage: the number of the pass that last claimed the chunk.
struct alignas(64) ChunkClaims {
  std::atomic<uint32_t> by[MAX_STAGES]{};
};

}  // namespace

struct Pool {
  int threads = 1;
  std::vector<int32_t> cpus;
  std::vector<std::thread> workers;
  std::unique_ptr<ChunkClaims[]> claims;  // [threads]

  // Even while a pass may be joined, odd while the next is being written.
  alignas(64) std::atomic<uint32_t> pass{0};
  std::atomic<Work> work{nullptr};
  std::atomic<uint64_t> argument[WORDS]{};
  int stages = 0;  // number of stages of the last pass
  alignas(64) std::atomic<int32_t> done[MAX_STAGES]{};

  std::mutex lock;
  std::condition_variable wake;
  int asleep = 0;
  std::atomic<bool> is_ending{false};

  void serve(int thread) {
    run_on(cpus);
    for (uint32_t seen = 0;;) {
      wait_for_pass(seen);
      seen = pass.load(std::memory_order_acquire);
      if (is_ending) return;  // checked after the load: the last pass has no work
      if (seen % 2) {
        pause();
        seen--;
        continue;
      }
      join(thread, seen);
    }
  }

  // Takes part in a pass. If the argument is overwritten while it is copied, the pass is over.
  void join(int thread, uint32_t seen) {
    uint64_t copy[WORDS];
    for (int i = 0; i < WORDS; i++) copy[i] = argument[i].load(std::memory_order_relaxed);
    const Work now = work.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (pass.load(std::memory_order_relaxed) != seen) return;
    Turn turn{this, seen, thread, threads, 0};
    now(copy, &turn);
  }

  void wait_for_pass(uint32_t seen) {
    const auto end = std::chrono::steady_clock::now() + SPIN_AFTER_PASS;
    while (std::chrono::steady_clock::now() < end) {
      if (pass.load(std::memory_order_acquire) != seen) return;
      pause();
    }
    std::unique_lock<std::mutex> guard(lock);
    asleep++;
    wake.wait(guard, [&] { return pass.load(std::memory_order_acquire) != seen; });
    asleep--;
  }

  // Publishes a pass to all threads; returns its number.
  uint32_t start(Work next, const void* source, size_t size) {
    const uint32_t number = pass.load(std::memory_order_relaxed) + 2;
    pass.store(number - 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    uint64_t words[WORDS] = {};
    memcpy(words, source, size);
    for (int i = 0; i < WORDS; i++) argument[i].store(words[i], std::memory_order_relaxed);
    work.store(next, std::memory_order_relaxed);
    for (int i = 0; i < stages; i++) done[i].store(0, std::memory_order_relaxed);
    bool sleepers;
    {
      std::lock_guard<std::mutex> guard(lock);
      pass.store(number, std::memory_order_release);
      sleepers = asleep > 0;
    }
    if (sleepers) wake.notify_all();
    return number;
  }
};

Pool* pool_new(int threads, const int32_t* cpus, int count) {
  Pool* pool = new (std::nothrow) Pool;
  if (!pool) return nullptr;
  pool->threads = threads;
  try {
    pool->cpus.assign(cpus, cpus + count);
    pool->claims.reset(new ChunkClaims[threads]);
    for (int i = 1; i < threads; i++) pool->workers.emplace_back(&Pool::serve, pool, i);
  } catch (const std::exception&) {
    pool_delete(pool);
    return nullptr;
  }
  return pool;
}

void pool_delete(Pool* pool) {
  pool->is_ending = true;
  pool->start(nullptr, "", 0);
  for (std::thread& worker : pool->workers) worker.join();
  delete pool;
}

int pool_size(const Pool* pool) { return pool->threads; }

void pool_run(Pool* pool, Work work, const void* argument, size_t size) {
  uint64_t copy[WORDS];
  memcpy(copy, argument, size);
  Turn turn{pool, pool->start(work, argument, size), 0, pool->threads, 0};
  work(copy, &turn);
  pool->stages = turn.stage;
}

int pool_take(Turn* turn) {
  Pool* pool = turn->pool;
  for (int i = 0; i < turn->threads; i++) {
    const int chunk = (turn->thread + i) % turn->threads;
    std::atomic<uint32_t>& claim = pool->claims[chunk].by[turn->stage];
    uint32_t last = claim.load(std::memory_order_relaxed);
    if (!before(last, turn->pass)) continue;  // claimed, or this pass has ended
    if (claim.compare_exchange_strong(last, turn->pass, std::memory_order_acq_rel)) return chunk;
  }
  return -1;
}

void pool_done(Turn* turn) { turn->pool->done[turn->stage].fetch_add(1, std::memory_order_acq_rel); }

bool pool_next(Turn* turn) {
  Pool* pool = turn->pool;
  for (int i = 0; pool->done[turn->stage].load(std::memory_order_acquire) < turn->threads; i++) {
    if (pool->pass.load(std::memory_order_relaxed) != turn->pass) return false;
    if (i < MAX_SPINS) {
      pause();
    } else {
      std::this_thread::yield();  // more threads than free cores: let the missing thread run
    }
  }
  turn->stage++;
  return true;
}

}  // namespace ldf
