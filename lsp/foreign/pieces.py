"""Completion request for a remote server, and its stream as events, cut where our own engine would end the text."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import msgspec

from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.extent import CursorContext, Mode, find_cursor_context
from localdflash.code.fim.presentable import PresentableEnding
from localdflash.code.fim.prompt import Gap
from localdflash.code.fim.python_lines import missing_blanks
from localdflash.code.fim.sound import Soundness
from localdflash.lsp.engine_completer import Event
from localdflash.server.client import ClientConnection, Events
from localdflash.server.refusals import refusal
from localdflash.text.syntax import language_of

SHAPING = ("top_k", "top_p", "min_p", "repetition_penalty")
VARIED_TEMPERATURE = 0.8  # temperature of all texts of a place but the first


@dataclass(frozen=True)
class Sampling:
    """Sampling of one text: greedy at temperature 0. `shaping`: other parameters by our names."""

    temperature: float = 0.0
    seed: int = 0
    shaping: Mapping[str, float] = field(default_factory=dict)

    def fields(self) -> dict[str, object]:
        """Return the parameters by their usual names."""
        return {"temperature": self.temperature, "seed": self.seed, **self.shaping}


@dataclass(frozen=True)
class InfillTask:
    """Gap, other code, and limits of the text. `max_tokens` 0: the server may read the prompt ahead of a request."""

    gap: Gap
    others: tuple[ContextPiece, ...]
    mode: Mode
    max_tokens: int
    count: int
    min_probability: float  # 0: requested by hand
    sampling: Sampling
    lead: str = ""  # blanks at the end of the gap's middle that the file does not have, and every text begins with

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "InfillTask":
        """Return the task of the body of a POST /complete, as our own engine gets it."""
        path = " ".join(body.get("path", "").split())
        language, sides = language_of(path, body.get("language", "")), (body["prefix"], body["middle"], body["suffix"])
        before, middle, after = (side.replace("\r\n", "\n") for side in sides)
        gap = Gap(path, language, before, middle, after, body.get("first_line", 0), body.get("closed", ""))
        context = [{**part, "name": " ".join(part["name"].split())} for part in body.get("context", ())]
        shaping = {name: body[name] for name in SHAPING if name in body}
        task = cls(
            gap,
            tuple(ContextPiece(**part) for part in context),
            body.get("mode", "auto"),
            body["max_tokens"],
            body.get("count", 1) if body["max_tokens"] else 1,
            body.get("least_sure", 0.0),
            Sampling(body.get("temperature", 0.0), body.get("seed") or 0, shaping),
        )
        lead = missing_blanks(task.cursor())  # blanks that a statement needs at the cursor
        return replace(task, gap=replace(gap, middle=gap.middle + lead), lead=lead) if lead else task

    @property
    def before(self) -> str:
        """Return all text before the cursor."""
        return self.gap.prefix + self.gap.middle

    @property
    def line(self) -> str:
        """Return the cursor's line, up to the cursor."""
        return self.before.rpartition("\n")[2]

    def cursor(self) -> CursorContext:
        """Return the context of the cursor."""
        return find_cursor_context(self.gap.language, self.before, self.gap.suffix, self.mode)

    def ending(self, word: str) -> PresentableEnding:
        """Return the ending of a text that begins with a word."""
        cursor, texts = self.cursor(), (self.before, self.gap.suffix, *(piece.text for piece in self.others))
        sound = Soundness.at(cursor, self.before, self.gap.suffix, self.gap.closed)
        return PresentableEnding(cursor, sound, texts, word, self.min_probability, self.lead)

    def draws(self) -> list[Sampling]:
        """Return how to sample each requested text: the first as requested, others varied."""
        first = self.sampling
        hot = max(first.temperature, VARIED_TEMPERATURE)
        return [first, *(replace(first, temperature=hot, seed=first.seed + one) for one in range(1, self.count))]


ChunkT = TypeVar("ChunkT", bound="StreamChunk")


class Piece(NamedTuple):
    """Part of a text. `logprobs` are those of its tokens, if reported."""

    text: str
    logprobs: tuple[float, ...] = ()
    tokens: int = 1
    end: str = ""  # why the server ended it: "stop" or "length"


class InfillServer(ABC):
    """`CompletionSource` on a connection to a server that can infill. `model` is its model."""

    def __init__(self, model: str, connection: ClientConnection[Any]) -> None:
        self.model, self._connection = model, connection

    def word(self, task: InfillTask) -> str:
        """Return the unfinished word before the cursor, if the server can sample it again; else ""."""
        return ""

    @abstractmethod
    def stream(self, task: InfillTask, sampling: Sampling, word: str) -> AsyncGenerator[Piece]:
        """Yield the pieces of a text, which begins with `word`. Closing the generator stops the server."""

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Event]:
        """Yield the events of all requested texts, one text after the other."""
        task = InfillTask.of(body)
        word = self.word(task)
        for index, sampling in enumerate(task.draws()):
            async with aclosing(_events(self.stream(task, sampling, word), task, word, index)) as events:
                async for event in events:
                    yield event

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def _events(stream: AsyncGenerator[Piece], task: InfillTask, word: str, index: int) -> AsyncGenerator[Event]:
    ending = task.ending(word)
    logprobs: list[float] = []
    tokens, finish, began = 0, "stop", time.monotonic()
    async with aclosing(stream) as pieces:
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
    """Part of an answer, or an error."""

    error: Any = None


class JsonLines(Events):
    """Splitter of a streamed body into lines of JSON."""

    kind = b"application/x-ndjson"

    def push(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines that this piece completes."""
        return (line for line in self._lines(piece) if line.strip())


def decoder(kind: type[ChunkT]) -> Callable[[bytes], ChunkT]:
    """Return a function that decodes a chunk; LocaldflashError if it reports an error or is invalid."""
    read = msgspec.json.Decoder(kind)

    def decode(data: bytes) -> ChunkT:
        try:
            chunk = read.decode(data)
        except (msgspec.DecodeError, RecursionError):  # which bad UTF-8 is, too
            raise refusal(data, 200) from None
        if chunk.error is not None:
            raise refusal(data, 200)
        return chunk

    return decode
