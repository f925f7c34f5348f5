"""Trial compilation of a grammar in a child process, since llguidance's limits do not cover all of its work.

Run as a program, this file prints a line feed once it has started, reads a grammar from stdin, and prints the error.
"""

import contextlib
import subprocess
import sys
from functools import lru_cache
from threading import BoundedSemaphore

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

CPU_SECONDS, SECONDS, MEMORY_BYTES = 2, 10, 512 << 20  # limits on a trial's CPU time, elapsed time and memory
_process_slots = BoundedSemaphore(2)  # trials at the same time; further requests wait
# A lexer state takes 1 to 2 KB. The other limits are llguidance's defaults, where a mask takes at most 20 ms or so.
LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class TooMuchWork(Exception):
    """The grammar does not compile within the limits on CPU time, memory and elapsed time."""


@lru_cache(maxsize=256)
def compile_error(grammar: str) -> str:
    """Return the error of a grammar in llguidance's internal form; "" if it compiles. Takes 0.1 s for a new grammar.

    TooMuchWork if a limit is exceeded; OSError, for example ChildProcessError, if the child process does not start.
    """
    program = [sys.executable, "-P", __file__]
    with _process_slots, contextlib.suppress(subprocess.TimeoutExpired):
        child = subprocess.run(program, input=grammar.encode(), capture_output=True, timeout=SECONDS, check=False)
        if not child.stdout:
            error = child.stderr.decode("utf-8", "replace").rstrip().rpartition("\n")[2]
            raise ChildProcessError(error or f"exit code {child.returncode}")
        if child.returncode == 0:
            return child.stdout.decode("utf-8", "replace").strip()
    raise TooMuchWork


def _compile(grammar: str) -> str:
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()  # fails for a grammar that no text satisfies
    return matcher.get_error()


def _limit_this_process() -> None:
    if sys.platform != "win32":
        import resource

        limits = {resource.RLIMIT_AS: MEMORY_BYTES, resource.RLIMIT_CPU: CPU_SECONDS, resource.RLIMIT_CORE: 0}
        for resource_id, limit in limits.items():
            resource.setrlimit(resource_id, (limit, limit))


if __name__ == "__main__":
    _limit_this_process()
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    sys.stdout.buffer.write(_compile(sys.stdin.buffer.read().decode()).encode("utf-8", "replace"))
