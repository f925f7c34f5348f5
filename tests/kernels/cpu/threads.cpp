// Passes of several stages by several threads, run under ThreadSanitizer: every chunk of every stage runs once, after
// the previous stage is complete. Arguments: threads, passes, and optionally a number of pools that are started and
// deleted right after zero to two passes.
#include <stdio.h>
#include <stdlib.h>

#include "threads.h"

namespace {

constexpr int STAGES = 6, CHUNKS = 16;

struct Board {
  int number;
  int cells[STAGES][CHUNKS];  // what each chunk wrote
};

struct Argument {
  Board* board;
  int number, stages;
};

// A cell is the sum of the previous stage plus the pass's number, so a chunk that runs early, late or twice shows.
void work(const void* argument, ldf::Turn* turn) {
  const Argument& a = *static_cast<const Argument*>(argument);
  for (int stage = 0; stage < a.stages; stage++) {
    for (int chunk; (chunk = ldf::pool_take(turn)) >= 0;) {
      int before = 0;
      for (int c = 0; stage && c < turn->threads; c++) before += a.board->cells[stage - 1][c];
      a.board->cells[stage][chunk] += before % 1000 + a.number;
      ldf::pool_done(turn);
    }
    if (!ldf::pool_next(turn)) return;
  }
}

int is_wrong(const Board& board, int threads, int number, int stages) {
  Board expected = {};
  for (int stage = 0; stage < stages; stage++) {
    for (int chunk = 0; chunk < threads; chunk++) {
      int before = 0;
      for (int c = 0; stage && c < threads; c++) before += expected.cells[stage - 1][c];
      expected.cells[stage][chunk] = before % 1000 + number;
      if (board.cells[stage][chunk] != expected.cells[stage][chunk]) return 1;
    }
  }
  return 0;
}

void nothing(const void*, ldf::Turn* turn) {
  for (int stage = 0; stage < 2; stage++) {
    while (ldf::pool_take(turn) >= 0) ldf::pool_done(turn);
    if (!ldf::pool_next(turn)) return;
  }
}

void end_early(int threads, int pools) {
  for (int i = 0; i < pools; i++) {
    ldf::Pool* pool = ldf::pool_new(threads, nullptr, 0);
    for (int pass = 0; pass < i % 3; pass++) ldf::pool_run(pool, nothing, "", 1);
    ldf::pool_delete(pool);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = atoi(arguments[1]), passes = atoi(arguments[2]);
  if (count > 3) end_early(threads, atoi(arguments[3]));
  ldf::Pool* pool = ldf::pool_new(threads, nullptr, 0);
  int failures = 0;
  for (int number = 1; number <= passes; number++) {
    Board board = {};
    const int stages = 1 + number % STAGES;
    const Argument argument{&board, number, stages};
    ldf::pool_run(pool, work, &argument, sizeof argument);
    failures += is_wrong(board, threads, number, stages);
  }
  ldf::pool_delete(pool);
  printf("%d of %d passes went wrong\n", failures, passes);
  return failures != 0;
}
