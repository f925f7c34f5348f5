"""Driver of Linux terminals."""

import codecs
import os
import selectors

from textual.constants import ESCAPE_DELAY
from textual.drivers.linux_driver import LinuxDriver

from localdflash.tui.pastes import PasteParser

_READ_BYTES = 1 << 16
_POLL_SECONDS = 0.1  # interval of checks of `exit_event`
_MARGIN_SECONDS = 0.002  # added to Textual's `ESCAPE_DELAY`, so that the parser sees the delay as elapsed


class Driver(LinuxDriver):
    """Textual driver that reads pastes in large pieces, reports a lone Esc early, and accepts invalid UTF-8."""

    def run_input_thread(self) -> None:
        """Read keys until `exit_event` is set."""
        parser, decode = PasteParser(self._debug), codecs.getincrementaldecoder("utf-8")("replace").decode
        wait = _POLL_SECONDS
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                ready = selector.select(wait)
                if ready:
                    if not (data := os.read(self.fileno, _READ_BYTES)):
                        break
                    for event in parser.feed(decode(data)):
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
                wait = ESCAPE_DELAY + _MARGIN_SECONDS if ready else _POLL_SECONDS
