"""Bytes from a client to JSON values: LSP's base protocol, read so that no bytes can make the server deaf.

A header gives the length of the body after it. If that cannot be true, reading resumes at the next header: a valid body
holds no header line (a line end within a JSON string is escaped), so a header line found in a body means that the
length was wrong. What cannot be understood is returned as a `Malformed`, with what is known of it.

Header lines may end with LF alone, and names in any case. Bytes that are not UTF-8 become lone surrogates (as in
Python's file names): an editor may have such a file open, and every such byte is one unit of its columns.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

LARGEST = 32_000_000  # bytes of a body that is read
KEPT = 65_536  # bytes of a larger one's beginning and end, to see what it was
LONGEST_LINE = 8_192  # bytes of a header line; more is garbage
_LENGTH = re.compile(rb"content-length[ \t]{0,8}:[ \t]{0,8}(\d{1,15})[ \t]{0,8}\r?\n", re.IGNORECASE)
_SPAN = 64  # bytes that a match of it can have
_HTTP = re.compile(rb"[A-Z]+ \S+ HTTP/\d")


class Malformed(NamedTuple):
    """A body that is not JSON, or is too large; of a large one the first and last bytes are kept, else nothing."""

    reason: str
    seen: bytes = b""


class HttpRequest(Exception):
    """The other side speaks HTTP. A web page may try a port, with any body it likes, and is not served."""


class Reader:
    """Takes bytes as they come and returns messages once they are whole. Holds one message, of at most `LARGEST`
    bytes.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._in_body = False
        self._length: int | None = None  # of the body, as its header says; of a header under way, as far as it is read
        self._scanned = 0  # bytes of the buffer that hold no header, in a body
        self._dropped = 0  # bytes of a body that is too large
        self._beginning = b""  # of it

    def feed(self, data: bytes) -> Iterator[object]:
        """JSON values and `Malformed`s; take all before the next call. HttpRequest if this is no LSP client."""
        self._buffer += data
        while self._in_body or self._read_header():
            if self._is_cut_short():
                yield Malformed("a message ended before its Content-Length")
            elif self._is_whole():
                yield self._take_body()
            else:
                return

    def _read_header(self) -> bool:
        """Read a header; return whether a body begins. Lines that are not a header are skipped."""
        while (end := self._buffer.find(b"\n") + 1) > 0:
            line = bytes(self._buffer[:end])
            del self._buffer[:end]
            if _HTTP.match(line):
                raise HttpRequest
            if named := _LENGTH.search(line):
                self._length = int(named[1])
            elif not line.strip() and self._length is not None:
                self._in_body, self._scanned, self._dropped, self._beginning = True, 0, 0, b""
                return True
        if len(self._buffer) > LONGEST_LINE:
            del self._buffer[:-_SPAN]
        return False

    @property
    def _left(self) -> int:
        """The number of bytes from the beginning of the buffer to the end of the body."""
        return (self._length or 0) - self._dropped

    def _is_cut_short(self) -> bool:
        """Whether a header line stands in what has come of the body; if so, reading resumes there."""
        while (end := self._buffer.find(b"\n", self._scanned, self._left) + 1) > 0:
            start = max(end - _SPAN, 0)
            if named := _LENGTH.search(bytes(self._buffer[start:end])):
                del self._buffer[: start + named.start()]
                self._in_body, self._length = False, None
                return True
            self._scanned = end
        self._scanned = min(len(self._buffer), self._left)
        return False

    def _is_whole(self) -> bool:
        """Whether the body is complete; of one that is too large only its first and last bytes are kept."""
        if self._left <= len(self._buffer):
            return True
        if (self._length or 0) > LARGEST and (surplus := len(self._buffer) - 2 * KEPT) > 0:
            self._beginning = self._beginning or bytes(self._buffer[:KEPT])
            del self._buffer[:surplus]
            self._dropped += surplus
            self._scanned -= surplus
        return False

    def _take_body(self) -> object:
        length, left = self._length or 0, self._left
        self._in_body, self._length = False, None
        if length > LARGEST:
            seen = (self._beginning or bytes(self._buffer[:KEPT])) + bytes(self._buffer[max(left - KEPT, 0) : left])
            del self._buffer[:left]
            return Malformed(f"a message of {length / 1e6:.0f} MB is too large", seen)
        try:
            value: object = json.loads(self._buffer[:left].decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            # It stays in the buffer: its end may begin the next header, where the length was too large.
            return Malformed("a message is no JSON")
        del self._buffer[:left]
        return value
