"""LSP's base protocol: parse the bytes of a connection into JSON values.

pygls's own reader loses a message whose body is not UTF-8, waits forever after an unknown header, and has no limit.
"""

import json
import re
from collections.abc import Iterator

MAX_BODY_BYTES = 256_000_000
MAX_HEADER_BYTES = 8_192
NOT_JSON = object()  # yielded by `MessageReader.feed` for a body that is not JSON
_HEADER = re.compile(
    rb"(?:[\w-]+:.*\n)*?content-length:[ \t]*(\d{1,15})[ \t]*\r?\n(?:[\w-]+:.*\n)*\r?\n", re.IGNORECASE
)
_BLANK_LINE = re.compile(rb"^\r?\n", re.MULTILINE)


class FramingError(Exception):
    """The client does not speak LSP, or a body is too large; the connection cannot continue."""


class MessageReader:
    """Push parser: takes bytes in pieces of any size and yields messages once they are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length: int | None = None  # bytes of the current body; None until its header is complete

    def feed(self, data: bytes) -> Iterator[object]:
        """Yield JSON values, or NOT_JSON. Exhaust the iterator before the next call."""
        self._buffer += data
        while True:
            if self._length is None:
                self._length = self._read_header()
            if self._length is None or len(self._buffer) < self._length:
                return
            body = bytes(self._buffer[: self._length])
            del self._buffer[: self._length]
            self._length = None
            try:
                # Bytes that are not UTF-8 become lone surrogates, each of which `document` counts as one unit.
                yield json.loads(body.decode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError):
                yield NOT_JSON

    def _read_header(self) -> int | None:
        """Remove a header from the buffer and return the body's length; None if the header is incomplete."""
        if header := _HEADER.match(self._buffer, 0, MAX_HEADER_BYTES):
            length = int(header[1])
            if length > MAX_BODY_BYTES:
                raise FramingError(f"a message of {length / 1e6:.0f} MB is too large")
            del self._buffer[: header.end()]
            return length
        if _BLANK_LINE.search(self._buffer) or len(self._buffer) >= MAX_HEADER_BYTES:
            raise FramingError("expected a Content-Length header")  # perhaps HTTP: a web page may try a port
        return None
