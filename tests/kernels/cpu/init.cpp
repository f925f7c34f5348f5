// The first process of an emulated machine: runs /check with its arguments, prints the exit status on the console and
// turns the machine off. See emulated.py.
#include <sched.h>
#include <stdio.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

int main(int, char** arguments) {
  const sched_param first = {1};
  sched_setscheduler(0, SCHED_FIFO, &first);  // no process may run in between: the emulator does not save tiles
  if (fork() == 0) {
    execv("/check", arguments);
    _exit(127);
  }
  int status = 0;
  wait(&status);
  printf("exit status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  fflush(stdout);
  tcdrain(1);
  reboot(RB_POWER_OFF);
}
