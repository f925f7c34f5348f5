"""Read bracketed pastes without Textual's parser; the prompt field inserts, attaches or refuses them.

Textual's parser needs a second per megabyte and treats an escape character within a paste as a key: pasted text could
trigger keys. So pasted text never reaches that parser.
"""

import re
from collections.abc import Iterable

from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message

from localdflash.text.sanitize import sanitize

MAX_PASTE_CHARS = 1_000_000  # the prompt field refuses longer pastes
MAX_INLINE_LINES, MAX_INLINE_CHARS = 30, 2_000  # longer pastes are attached
_OTHER_LINE_ENDS = re.compile("\r\n|[\r\u2028\u2029]")


def is_long(text: str) -> bool:
    """Return whether a paste is attached rather than inserted."""
    return len(text) > MAX_INLINE_CHARS or len(normalise_line_ends(text).splitlines()) > MAX_INLINE_LINES


def normalise_line_ends(text: str) -> str:
    """Replace carriage returns, which terminals send for line ends, unless the text has line feeds."""
    return text if "\n" in text else text.replace("\r", "\n")


def clean_paste(text: str) -> tuple[str, int]:
    """Return the sanitized text, and the number of characters that were changed."""
    text = _OTHER_LINE_ENDS.sub("\n", text)
    safe = sanitize(text)
    return safe, 0 if safe == text else sum(sanitize(character) != character for character in text)


_START, _END = "\x1b[200~", "\x1b[201~"


class Paste(events.Paste):
    """A paste. `raw` is its text, cut after MAX_PASTE_CHARS + 1 characters; `length` is the length before the cut."""

    def __init__(self, raw: str, length: int) -> None:
        super().__init__(sanitize(_OTHER_LINE_ENDS.sub("\n", raw)))
        self.raw, self.length = raw, length


class PasteParser(XTermParser):
    """Parser of terminal input: bracketed pastes are read in bulk, everything else goes to Textual's parser."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._before = ""  # end of the last chunk, because `_START` or `_END` may be split across chunks
        self._pieces: list[str] | None = None  # text of the paste being read; None outside a paste
        self._length = self._kept = 0  # number of characters of the paste, and of those in `_pieces`

    def feed(self, data: str) -> Iterable[Message]:
        """Yield the events of a chunk of input."""
        while data:
            if self._pieces is None:
                outside, data = self._outside(data)
                yield from super().feed(outside)
            else:
                ended, data = self._inside(self._pieces, data)
                if ended:
                    yield from self._end(self._pieces)

    def _outside(self, data: str) -> tuple[str, str]:
        """Return the input up to and including a paste's `_START`, and the rest."""
        pending = self._before + data
        position = pending.find(_START)
        if position < 0:
            self._before = pending[-len(_START) + 1 :]
            return data, ""
        split = position + len(_START) - len(self._before)
        self._before, self._pieces, self._length, self._kept = "", [], 0, 0
        return data[:split], data[split:]

    def _inside(self, pieces: list[str], data: str) -> tuple[bool, str]:
        """Append pasted text to `pieces`; return whether the paste has ended, and the rest of the input."""
        pending = self._before + data
        position = pending.find(_END)
        # A possible beginning of `_END` is kept until the next chunk.
        end = position if position >= 0 else max(len(pending) - len(_END) + 1, 0)
        room = max(MAX_PASTE_CHARS + 1 - self._kept, 0)
        pieces.append(pending[: min(end, room)])
        self._kept += len(pieces[-1])
        self._length += end
        self._before = "" if position >= 0 else pending[end:]
        return position >= 0, pending[end + len(_END) :] if position >= 0 else ""

    def _end(self, pieces: list[str]) -> Iterable[Message]:
        self._pieces = None
        for event in super().feed(_END):
            yield Paste("".join(pieces), self._length) if isinstance(event, events.Paste) else event
