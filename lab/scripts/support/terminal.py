"""Program on a pseudo-terminal, with its screen, and all bytes that it wrote with their times.

The terminal answers only the query for synchronised output. Output is read only inside the waiting methods, so a
program may block when it writes at other times.
"""

import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import pexpect
import psutil
import pyte

from localdflash.lab.scripts.support.bench_daemon import PROGRAM

READY = "Ask something"  # text in the prompt of an empty chat
PATIENCE = 20.0  # seconds of a wait before it fails
KEYS = {
    "enter": "\r",
    "escape": "\x1b",
    "tab": "\t",
    "backspace": "\x7f",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "pageup": "\x1b[5~",
    "pagedown": "\x1b[6~",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "f1": "\x1bOP",
    "f2": "\x1bOQ",
    "f3": "\x1bOR",
    "f4": "\x1bOS",
    "f5": "\x1b[15~",
    "f6": "\x1b[17~",
    "f7": "\x1b[18~",
    "shift+enter": "\x1b[13;2u",
}
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_MODE = re.compile(rb"\x1b\[\?([0-9;]+)([hl])")
_UNKNOWN_TO_PYTE = re.compile(rb"\x1b\[[<=>][0-;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p")
_INCOMPLETE = re.compile(rb"\x1b(\[[0-?]*[ -/]*)?$")
_SYNC_QUERY, _SYNC_REPLY = b"\x1b[?2026$p", b"\x1b[?2026;2$y"  # about synchronised output


@dataclass
class Terminal:
    """Running program; a context manager that kills it at the end."""

    child: "pexpect.spawn[bytes]"
    screen: pyte.Screen
    raw: bytearray = field(default_factory=bytearray)
    times: list[tuple[float, int]] = field(default_factory=list)  # perf_counter, and length of `raw` at that time
    _stream: pyte.ByteStream = field(init=False)
    _drawn: int = 0
    _ended: bool = False

    def __post_init__(self) -> None:
        self._stream = pyte.ByteStream(self.screen)

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        rows: int = 30,
        cols: int = 100,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        before: Callable[[], None] | None = None,
    ) -> Self:
        """Start a program; `before` runs in the new process first."""
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        variables = {**inherited, "TERM": "xterm-256color", "COLORTERM": "truecolor", "OMP_NUM_THREADS": "1"}
        variables |= {"HF_HUB_OFFLINE": "1", **(env or {})}  # offline the chat offers no download

        def prepared() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # background processes inherit an ignored SIGINT
            if before:
                before()

        with warnings.catch_warnings():  # forkpty with threads, but only exec follows
            warnings.simplefilter("ignore", DeprecationWarning)
            child = pexpect.spawn(
                command[0],
                list(command[1:]),
                env=variables,
                cwd=cwd,
                dimensions=(rows, cols),
                preexec_fn=prepared,
                echo=False,
            )
        child.delaybeforesend = None
        child.ptyproc.delayafterclose = child.ptyproc.delayafterterminate = 0
        return cls(child, pyte.Screen(cols, rows))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.isalive():
            self.kill()
            self.child.wait()
        self.child.close()

    # Screen

    @property
    def text(self) -> str:
        """Return the screen's rows, without trailing blanks."""
        new = _INCOMPLETE.sub(b"", bytes(self.raw[self._drawn :]))
        self._drawn += len(new)
        try:
            self._stream.feed(_UNKNOWN_TO_PYTE.sub(b"", new))
        except TypeError as error:  # pyte raises it for parameters that a sequence does not have
            raise AssertionError(f"the program wrote an invalid sequence: {error}: {new[-2000:]!r}") from None
        return "\n".join(row.rstrip() for row in self.screen.display)

    @property
    def modes(self) -> set[int]:
        """Return the private modes that are set, for example 1049 (alternate screen) and 25 (cursor)."""
        found = {25}
        for numbers, final in _MODE.findall(self.raw):
            for number in map(int, numbers.split(b";")):
                (found.add if final == b"h" else found.discard)(number)
        return found

    def wait_for(self, expected: str | re.Pattern[str] | Callable[[str], object], seconds: float = PATIENCE) -> str:
        """Wait until the screen has a text or fulfils a condition; return it. AssertionError with the screen if not."""
        end = time.monotonic() + seconds
        while not _matches(expected, self.text):
            left = end - time.monotonic()
            assert left > 0, self.failure(f"{expected!r} did not come within {seconds:g} s")
            if not self.read(min(left, 0.5)) and self._ended:
                assert _matches(expected, self.text), self.failure(f"the program ended before {expected!r} came")
        return self.text

    def settle(self, quiet: float = 0.3, seconds: float = PATIENCE) -> None:
        """Wait until the program has written nothing for `quiet` seconds."""
        end = time.monotonic() + seconds
        while self.read(quiet):
            assert time.monotonic() < end, self.failure("the program keeps writing")

    def written(self, since: int) -> str:
        """Return the output after byte `since`, without colours; faster than the screen."""
        return _COLOURS.sub(b"", self.raw[since:]).decode("utf-8", "replace")

    def wait_written(self, expected: str, since: int, seconds: float = PATIENCE) -> None:
        """Wait until the output after byte `since` has a text."""
        end = time.monotonic() + seconds
        while expected not in self.written(since):
            assert time.monotonic() < end, self.failure(f"{expected!r} did not come within {seconds:g} s")
            assert self.read(0.5) or not self._ended, self.failure(f"the program ended before {expected!r} came")

    def failure(self, what: str) -> str:
        """Return a failure message: the event, the screen, the last bytes."""
        edge = "+" + "-" * self.screen.columns + "+"
        rows = [f"|{row.ljust(self.screen.columns)}|" for row in self.text.rstrip().split("\n")]
        return "\n".join([what, edge, *rows, edge, f"the last bytes: {bytes(self.raw[-200:])!r}"])

    # Input and output

    def read(self, seconds: float) -> bool:
        """Read output within this time; return False if there was none or the program has ended."""
        if self._ended:
            return False
        try:
            data = self.child.read_nonblocking(1 << 16, seconds)
        except pexpect.TIMEOUT:
            return False
        except pexpect.EOF:
            self._ended = True
            return False
        if _SYNC_QUERY in data:
            self.send(_SYNC_REPLY)
        self.raw += data
        self.times.append((time.perf_counter(), len(self.raw)))
        return True

    def watch(self, seconds: float) -> None:
        """Read output for this long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._ended:
            self.read(left)

    def send(self, data: bytes) -> None:
        """Send bytes as keyboard input."""
        with suppress(OSError):
            self.child.send(data)

    def type(self, text: str) -> None:
        """Type a text."""
        self.send(text.encode())

    def paste(self, text: str) -> None:
        """Paste a text, as a terminal does."""
        self.send(b"\x1b[200~" + text.encode("utf-8", "surrogateescape") + b"\x1b[201~")

    def press(self, *keys: str) -> None:
        """Press keys by name: "enter", "ctrl+c", "alt+left", "f1", or a character."""
        for key in keys:
            self.type(_key(key))

    def resize(self, rows: int, cols: int) -> None:
        """Change the size; the screen starts empty."""
        self.text  # noqa: B018 - what came before is drawn at the old size
        self.screen.resize(rows, cols)
        self.child.setwinsize(rows, cols)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for the program's end; return its exit code, or minus the number of the signal that ended it."""
        end = time.monotonic() + seconds
        while self.child.isalive():
            assert time.monotonic() < end, self.failure("the program does not end")
            self.read(0.05)
        while self.read(0.05):
            pass
        return -self.child.signalstatus if self.child.signalstatus else int(self.child.exitstatus or 0)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the program if it is running."""
        if self.child.isalive():
            self.child.kill(number)

    @property
    def process(self) -> psutil.Process:
        """Return the program's process."""
        return psutil.Process(self.child.pid)


def chat(*arguments: str, program: str = "", **rest: object) -> Terminal:
    """Start `localdflash chat` on a terminal; `program` is Python code that runs first in its process."""
    return Terminal.start([sys.executable, "-P", "-c", program + PROGRAM, "chat", *arguments], **rest)  # type: ignore[arg-type]


def _key(name: str) -> str:
    if name in KEYS:
        return KEYS[name]
    modifier, _, key = name.rpartition("+")
    if modifier == "ctrl":
        return chr(ord(key.upper()) & 0x1F)
    if modifier == "alt":
        known = KEYS.get(key, key)
        return known.replace("\x1b[", "\x1b[1;3") if key in KEYS else "\x1b" + key
    assert not modifier, f"no key {name!r}"
    return name


def _matches(expected: str | re.Pattern[str] | Callable[[str], object], text: str) -> bool:
    if isinstance(expected, str):
        return expected in text
    if isinstance(expected, re.Pattern):
        return expected.search(text) is not None
    return bool(expected(text))
