// A file that became shorter while it is mapped ends a process with SIGBUS: here with a line that names the file.
#include <atomic>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define LDF_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int MOST = 64, LONGEST = 1024;

// A file in memory; begin is null where none is.
struct Mapped {
  std::atomic<uintptr_t> begin;
  size_t bytes;
  int exit_code;
  char line[LONGEST];
};

Mapped mapped[MOST];
struct sigaction before;  // what had the signal
bool installed = false;

// Only what may be called while a thread is anywhere.
void on_fault(int signal, siginfo_t* about, void* context) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(about->si_addr);
  for (const Mapped& file : mapped) {
    const uintptr_t begin = file.begin.load();
    if (!begin || at < begin || at - begin >= file.bytes) continue;
    if (write(STDERR_FILENO, file.line, strlen(file.line)) < 0) _exit(file.exit_code);
    _exit(file.exit_code);
  }
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, about, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  sigaction(signal, &before, nullptr);  // the same fault comes again, and ends the process
}

}  // namespace

// From now on a fault in a mapped file writes the line and ends the process with the code. Called by one thread at a time.
LDF_API void ldf_guard(const void* begin, size_t bytes, const char* line, int exit_code) {
  if (!installed) {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    installed = sigaction(SIGBUS, &action, &before) == 0;
  }
  for (Mapped& file : mapped) {
    if (file.begin.load()) continue;
    file.bytes = bytes;
    file.exit_code = exit_code;
    strncpy(file.line, line, LONGEST - 1);
    file.begin.store(reinterpret_cast<uintptr_t>(begin));
    return;
  }
}

// No longer, before it is unmapped.
LDF_API void ldf_unguard(const void* begin) {
  for (Mapped& file : mapped) {
    if (file.begin.load() == reinterpret_cast<uintptr_t>(begin)) file.begin.store(0);
  }
}
