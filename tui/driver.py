"""The terminal as the chat reads it.

Textual's driver checks the clock and its exit flag only every 0.1 s, so a lone Esc and leaving would be that late. This
one wakes up for both, sleeps while nothing comes, takes pastes whole (`localdflash.tui.pastes`), and shows bytes
that are not UTF-8 as U+FFFD instead of ending the chat.
"""

import codecs
import os
import selectors
from contextlib import suppress
from threading import Event

from textual.app import App
from textual.constants import ESCAPE_DELAY
from textual.drivers.linux_driver import LinuxDriver

from localdflash.base.system import descriptor
from localdflash.tui.pastes import PasteParser

_READ_BYTES = 1 << 16  # bytes at a time
_MARGIN_SECONDS = 0.002  # seconds, for the parser to see that the delay is over


class Exit(Event):
    """`threading.Event` with a file descriptor, so that a selector can wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._reader, self._writer = os.pipe()
        descriptor.set_blocking(self._reader, False)
        descriptor.set_blocking(self._writer, False)

    def fileno(self) -> int:
        """Return a descriptor that is readable while the event is set."""
        return self._reader

    def set(self) -> None:
        """See threading. The flag is set before the pipe is written, for whoever wakes up looks at the flag."""
        super().set()
        with suppress(BlockingIOError):  # nobody has looked for a long time
            os.write(self._writer, b"\0")

    def clear(self) -> None:
        """See threading."""
        super().clear()
        with suppress(BlockingIOError):
            os.read(self._reader, _READ_BYTES)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self._writer)


class Driver(LinuxDriver):
    """Textual driver for Linux terminals that reads input in large chunks."""

    def __init__(self, app: App[object], **options: object) -> None:
        super().__init__(app, **options)  # type: ignore[arg-type]
        self.exit_event = self._exit = Exit()

    def close(self) -> None:
        """See textual."""
        super().close()
        self._exit.close()

    def suspend_application_mode(self) -> None:
        """See textual: the terminal is another program's for a while. The pipe of the exit is needed again."""
        self.stop_application_mode()
        super().close()

    def run_input_thread(self) -> None:
        """Read keys until the exit is set."""
        parser, decode = PasteParser(self._debug), codecs.getincrementaldecoder("utf-8")("replace").decode
        wait: float | None = None
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(self._exit, selectors.EVENT_READ)
            while True:
                ready = selector.select(wait)
                if self.exit_event.is_set():
                    break
                if ready:
                    data = os.read(self.fileno, _READ_BYTES)
                    if not data:
                        break  # nobody is there any more
                    for event in parser.feed(text) if (text := decode(data)) else ():
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
                # Only what has come lately may be the begin of a key whose end is still to come.
                wait = ESCAPE_DELAY + _MARGIN_SECONDS if ready else None
        for _ in parser.feed(""):  # what is left is no key
            pass
