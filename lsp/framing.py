"""LSP's base protocol: parse the bytes of a connection into JSON values.

pygls' own reader is not used. It skips a header that it does not know, so that the client waits forever. It also logs a
traceback and loses the message if a body is not UTF-8, which Neovim sends for such a file, and it holds bodies of any
size in memory.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_BODY_BYTES = 32_000_000  # a larger body is skipped
EXCERPT_BYTES = 65_536  # kept of both ends of a larger body, to find out what it was
MAX_HEADER_BYTES = 8_192
_HEADER = re.compile(
    rb"(?:[\w-]+:.*\n)*?content-length:[ \t]*(\d{1,15})[ \t]*\r?\n(?:[\w-]+:.*\n)*\r?\n", re.IGNORECASE
)
_BLANK_LINE = re.compile(rb"^\r?\n", re.MULTILINE)


class MalformedMessage(NamedTuple):
    """A body that is not JSON or is too large. `excerpt`: the first and last bytes of a body that is too large."""

    reason: str
    excerpt: bytes = b""


class FramingError(Exception):
    """An invalid header: the client does not speak LSP, or a body had another length than announced."""


class MessageReader:
    """Push parser: takes bytes in pieces of any size and returns messages once they are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length: int | None = None  # of the body, once its header is complete
        self._skipped = 0  # bytes of a body that is too large
        self._head = b""  # first bytes of a body that is too large

    def feed(self, data: bytes) -> Iterator[object]:
        """Yield JSON values and `MalformedMessage`s. Exhaust the iterator before the next call."""
        self._buffer += data
        while self._length is not None or self._read_header():
            if len(self._buffer) < self._bytes_left():
                self._skip_surplus()
                return
            yield self._take_body()

    def _read_header(self) -> bool:
        """Read the header; return whether it is complete."""
        if header := _HEADER.match(self._buffer, 0, MAX_HEADER_BYTES):
            self._length = int(header[1])
            del self._buffer[: header.end()]
            return True
        if _BLANK_LINE.search(self._buffer) or len(self._buffer) >= MAX_HEADER_BYTES:
            raise FramingError("expected a Content-Length header")  # perhaps HTTP: a web page may try a port
        return False

    def _bytes_left(self) -> int:
        """Return the number of bytes from the beginning of the buffer to the end of the body."""
        return (self._length or 0) - self._skipped

    def _skip_surplus(self) -> None:
        """Drop the middle of a body that is too large."""
        surplus = len(self._buffer) - 2 * EXCERPT_BYTES
        if (self._length or 0) <= MAX_BODY_BYTES or surplus <= 0:
            return
        self._head = self._head or bytes(self._buffer[:EXCERPT_BYTES])
        del self._buffer[:surplus]
        self._skipped += surplus

    def _take_body(self) -> object:
        length, left, head = self._length or 0, self._bytes_left(), self._head
        body = bytes(self._buffer[:left])
        del self._buffer[:left]
        self._length, self._skipped, self._head = None, 0, b""
        if length > MAX_BODY_BYTES:
            excerpt = (head or body[:EXCERPT_BYTES]) + body[-EXCERPT_BYTES:]
            return MalformedMessage(f"a message of {length / 1e6:.0f} MB is too large", excerpt)
        try:
            # Bytes that are not UTF-8 become lone surrogates, which count as one unit of a column each.
            return json.loads(body.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            return MalformedMessage("a message is not JSON")
