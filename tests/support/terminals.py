"""`localdflash` on a pseudo-terminal, in its own process."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence

PROGRAM = (sys.executable, "-P", "-c", "import sys; from localdflash.cli import main; sys.exit(main())")


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, *arguments: str, program: Sequence[str] = PROGRAM) -> None:
        self._master, slave = os.openpty()
        self._seen = b""
        self.process = subprocess.Popen(
            [*program, *arguments], stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "dumb"}
        )
        os.close(slave)

    def type(self, data: bytes) -> None:
        os.write(self._master, data)

    def expect(self, text: bytes, seconds: float = 60) -> bytes:
        """Return all output up to and including this text."""
        end = time.monotonic() + seconds
        while text not in self._seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self._seen!r}"
            self._seen += os.read(self._master, 4096)
        found, _, self._seen = self._seen.partition(text)
        return found + text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
