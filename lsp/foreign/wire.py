"""Reading what servers say: events and lines as typed values, errors as ours."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from localdflash.server.client import Events
from localdflash.server.refusals import refusal

Said = TypeVar("Said", bound="Saying")


class Saying(msgspec.Struct):
    """A part of an answer, or an error instead."""

    error: Any = None


class JsonLines(Events):
    """Splits a body that comes in pieces into lines of JSON."""

    kind = b"application/x-ndjson"

    def push(self, piece: bytes) -> Iterator[bytes]:
        """The lines that this piece completes."""
        return (line for line in self._lines(piece) if line.strip())


def decoder(kind: type[Said]) -> Callable[[bytes], Said]:
    """A function that decodes such a part; LocaldflashError if it reports an error or makes no sense."""
    read = msgspec.json.Decoder(kind)

    def decode(data: bytes) -> Said:
        try:
            said = read.decode(data)
        except (msgspec.DecodeError, RecursionError):  # which bad UTF-8 is, too
            raise refusal(data, 200) from None
        if said.error is not None:
            raise refusal(data, 200)
        return said

    return decode
