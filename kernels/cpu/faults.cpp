// If a mapped file becomes shorter, an access ends the process with SIGBUS. This handler prints a message that names
// the file.
#include <atomic>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define LDF_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int MAX_FILES = 64, MAX_LINE_BYTES = 1024;

// A mapped file; begin is 0 in a free entry.
struct GuardedFile {
  std::atomic<uintptr_t> begin;
  size_t bytes;
  int exit_code;
  char line[MAX_LINE_BYTES];
};

GuardedFile guarded_files[MAX_FILES];
struct sigaction previous;  // the earlier handler
bool installed = false;

// Async-signal-safe.
void on_fault(int signal, siginfo_t* about, void* context) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(about->si_addr);
  for (const GuardedFile& file : guarded_files) {
    const uintptr_t begin = file.begin.load();
    if (!begin || at < begin || at - begin >= file.bytes) continue;
    if (write(STDERR_FILENO, file.line, strlen(file.line)) < 0) _exit(file.exit_code);
    _exit(file.exit_code);
  }
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, about, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
  sigaction(signal, &previous, nullptr);  // the fault repeats and ends the process
}

}  // namespace

// Makes a fault in a mapped file write the line and end the process with the exit code. Not thread-safe.
LDF_API void ldf_guard(const void* begin, size_t bytes, const char* line, int exit_code) {
  if (!installed) {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    installed = sigaction(SIGBUS, &action, &previous) == 0;
  }
  for (GuardedFile& file : guarded_files) {
    if (file.begin.load()) continue;
    file.bytes = bytes;
    file.exit_code = exit_code;
    strncpy(file.line, line, MAX_LINE_BYTES - 1);
    file.begin.store(reinterpret_cast<uintptr_t>(begin));
    return;
  }
}

// Stops guarding a file; call before unmapping it.
LDF_API void ldf_unguard(const void* begin) {
  for (GuardedFile& file : guarded_files) {
    if (file.begin.load() == reinterpret_cast<uintptr_t>(begin)) file.begin.store(0);
  }
}
