// Passes of several stages by several threads, run under ThreadSanitizer: every chunk of every stage once, none before
// the stage before it is complete. Arguments: threads, passes.
// With a third, so many pools one after the other end right after a pass or two.
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

// A cell is the sum of the stage before it plus the pass's number, so that a chunk that is early, late or done twice shows.
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

int wrong(const Board& found, int threads, int number, int stages) {
  Board wanted = {};
  for (int stage = 0; stage < stages; stage++) {
    for (int chunk = 0; chunk < threads; chunk++) {
      int before = 0;
      for (int c = 0; stage && c < threads; c++) before += wanted.cells[stage - 1][c];
      wanted.cells[stage][chunk] = before % 1000 + number;
      if (found.cells[stage][chunk] != wanted.cells[stage][chunk]) return 1;
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
    failures += wrong(board, threads, number, stages);
  }
  ldf::pool_delete(pool);
  printf("%d of %d passes went wrong\n", failures, passes);
  return failures != 0;
}
