"""An answer as a row of blocks, one open at a time: Anthropic's messages and OpenAI's responses are made of them."""

import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from localdflash.server.api.answer_parts import Added, AnswerParts
from localdflash.server.api.answers import Choice, pieces
from localdflash.server.api.api_state import AppState
from localdflash.server.api.ask import Ask

BlockKind = Literal["thoughts", "text", "call"]


@dataclass
class Block:
    """A part of an answer; the text of a call are its arguments, in JSON."""

    kind: BlockKind
    number: int
    name: str = ""  # of the tool that is called
    text: str = ""  # so far
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24])


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block begins, has more `text`, or ends."""

    what: Literal["begin", "more", "end"]
    block: Block
    text: str = ""


class BlockWriter:
    """Writes what is added to an answer into blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open: Block | None = None
        self._calls = 0

    def push(self, added: Added) -> Iterator[BlockEvent]:
        """What happens with the next part; what goes on with an open call was written before what is said after it."""
        known = self._calls
        for call in (one for one in added.calls if one.index < known):
            yield from self._more(call.arguments)
        yield from self._of("thoughts", added.thoughts)
        yield from self._of("text", added.said)
        for call in (one for one in added.calls if one.index >= known):
            if call.index == self._calls:
                self._calls += 1
                yield from self._begin("call", call.name)
            yield from self._more(call.arguments)

    def finish(self) -> Iterator[BlockEvent]:
        """The end of the block that is open, if one is."""
        block, self._open = self._open, None
        if block:
            yield BlockEvent("end", block)

    def _of(self, kind: BlockKind, text: str) -> Iterator[BlockEvent]:
        if not text:
            return
        if not self._open or self._open.kind != kind:
            yield from self._begin(kind)
        yield from self._more(text)

    def _begin(self, kind: BlockKind, name: str = "") -> Iterator[BlockEvent]:
        yield from self.finish()
        self._open = Block(kind, len(self.blocks), name)
        self.blocks.append(self._open)
        yield BlockEvent("begin", self._open)

    def _more(self, text: str) -> Iterator[BlockEvent]:
        if text and self._open:
            self._open.text += text
            yield BlockEvent("more", self._open, text)


@dataclass(frozen=True, slots=True)
class Grown:
    """How an answer has grown by one step: what happened, all blocks so far, and whether it is over."""

    events: Sequence[BlockEvent]
    blocks: Sequence[Block]
    choice: Choice
    ended: bool = False

    @property
    def called(self) -> bool:
        """Whether it is an answer that calls tools."""
        return any(block.kind == "call" for block in self.blocks)


async def growth(state: AppState, ask: Ask, parts: AnswerParts) -> AsyncGenerator[Grown]:
    """The one answer of a request, step by step. Closing this stops the engine within one step."""
    writer = BlockWriter()
    async with aclosing(pieces(state, ask)) as source:
        async for piece in source:
            ended = bool(piece.choice.finish) and not piece.text and not piece.chosen
            added = parts.finish() if ended else parts.push(piece.text)
            events = [*writer.push(added), *(writer.finish() if ended else ())]
            yield Grown(events, writer.blocks, piece.choice, ended)


async def whole(state: AppState, ask: Ask, parts: AnswerParts) -> Grown:
    """The one answer of a request, complete."""
    async with aclosing(growth(state, ask, parts)) as source:
        grown = [one async for one in source]
    return grown[-1]
