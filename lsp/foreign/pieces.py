"""Turn a server's stream into completion events, cut where our own engine would end the text.

At a syntactic end the connection is closed, which stops the server.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from localdflash.lsp.engine_completer import Event
from localdflash.lsp.foreign.place import InfillTask, Sampling
from localdflash.server.client import ClientConnection, Events
from localdflash.server.refusals import refusal

ChunkT = TypeVar("ChunkT", bound="StreamChunk")


class Piece(NamedTuple):
    """A part of a text. `logprobs` are those of its tokens, if reported."""

    text: str
    logprobs: tuple[float, ...] = ()
    tokens: int = 1
    end: str = ""  # why the server ended it: "stop" or "length"


@dataclass(frozen=True)
class Reply:
    """A streamed text. It begins with `word`, which is before the cursor already."""

    pieces: AsyncGenerator[Piece]
    word: str = ""


class InfillServer(ABC):
    """A `CompletionSource` on a connection to a server that can infill. `model` is its model."""

    def __init__(self, model: str, connection: ClientConnection[Any]) -> None:
        self.model, self._connection = model, connection

    @abstractmethod
    def fill(self, place: InfillTask, draw: Sampling) -> Reply:
        """Begin a text. Closing its pieces stops the server."""

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Event]:
        """Yield the events of all requested texts, one text after the other."""
        place = InfillTask.of(body)
        for index, draw in enumerate(place.draws()):
            async with aclosing(_events(self.fill(place, draw), place, index)) as events:
                async for event in events:
                    yield event

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def _events(reply: Reply, place: InfillTask, index: int) -> AsyncGenerator[Event]:
    ending = place.ending(reply.word)
    logprobs: list[float] = []
    tokens, finish, began = 0, "stop", time.monotonic()
    async with aclosing(reply.pieces) as pieces:
        async for piece in pieces:
            tokens, finish = tokens + piece.tokens, piece.end or finish
            logprobs += piece.logprobs
            text = ending.push(piece.text, piece.logprobs[0] if len(piece.logprobs) == 1 else None)
            if text:
                yield {"index": index, "text": text, "confidence": _confidence(logprobs)}
            if ending.ended or piece.end:
                break
    if text := ending.finish():
        yield {"index": index, "text": text, "confidence": _confidence(logprobs)}
    end: Event = {"index": index, "text": "", "finish": ending.reason or finish, "tokens": tokens}
    if took := time.monotonic() - began:
        end["timings"] = {"predicted_per_second": tokens / took}  # with what the prompt took: only that is known here
    yield end


def _confidence(logprobs: list[float]) -> float | None:
    """Return the geometric mean of the probabilities; None if they are unknown."""
    return math.exp(sum(logprobs) / len(logprobs)) if logprobs else None


class StreamChunk(msgspec.Struct):
    """A part of an answer, or an error."""

    error: Any = None


class JsonLines(Events):
    """Splits a streamed body into lines of JSON."""

    kind = b"application/x-ndjson"

    def push(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines that this piece completes."""
        return (line for line in self._lines(piece) if line.strip())


def decoder(kind: type[ChunkT]) -> Callable[[bytes], ChunkT]:
    """Return a function that decodes a chunk; LocaldflashError if it reports an error or is invalid."""
    read = msgspec.json.Decoder(kind)

    def decode(data: bytes) -> ChunkT:
        try:
            said = read.decode(data)
        except (msgspec.DecodeError, RecursionError):  # which bad UTF-8 is, too
            raise refusal(data, 200) from None
        if said.error is not None:
            raise refusal(data, 200)
        return said

    return decode
