"""Trial compilation of a grammar in a child process, since llguidance's limits do not cover all of its work.

Run as a program, this file prints a line feed as soon as it can compile, then reads a grammar and prints its error.
"""

import contextlib
import subprocess
import sys
from functools import lru_cache
from threading import BoundedSemaphore

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

SECONDS, MEMORY = 2, 512 << 20
_process_slots = BoundedSemaphore(2)  # further requests wait
# A lexer state takes 1 to 2 KB; the rest is the library's default, about 20 ms for a mask at worst.
LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class TooMuchWork(Exception):
    """The grammar does not compile within `SECONDS` and `MEMORY`."""


@lru_cache(maxsize=256)
def compile_error(grammar: str) -> str:
    """Return the error of a grammar in llguidance's internal form; "" if it compiles. Takes 0.1 s for a new grammar.

    TooMuchWork beyond the limits; OSError, for example ChildProcessError, if no process can compile it.
    """
    program = [sys.executable, "-P", __file__]
    with _process_slots, contextlib.suppress(subprocess.TimeoutExpired):
        child = subprocess.run(program, input=grammar.encode(), capture_output=True, timeout=5 * SECONDS, check=False)
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

        limits = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CPU: SECONDS, resource.RLIMIT_CORE: 0}
        for resource_id, limit in limits.items():
            resource.setrlimit(resource_id, (limit, limit))


if __name__ == "__main__":
    _limit_this_process()
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    sys.stdout.buffer.write(_compile(sys.stdin.buffer.read().decode()).encode("utf-8", "replace"))
