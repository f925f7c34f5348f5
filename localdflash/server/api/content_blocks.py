"""The parts of an answer: thoughts, text and tool calls, as they grow or as a sequence of blocks.

Anthropic's messages and OpenAI's responses are made of blocks, one open at a time.
"""

import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from localdflash.server.api.api_state import AppState
from localdflash.server.api.generation import Choice, GenerationRequest, pieces
from localdflash.text.thoughts import ThoughtSplit
from localdflash.text.tool_calls import CallDelta, CallReader

BlockKind = Literal["thoughts", "text", "call"]


@dataclass(frozen=True, slots=True)
class Added:
    """Parts that a piece of text adds; all may be empty."""

    thoughts: str = ""
    said: str = ""
    calls: Sequence[CallDelta] = ()


class AnswerParts:
    """Splitter of one choice's text into parts; without `split` or `calls`, thoughts or calls stay in the text."""

    def __init__(self, split: ThoughtSplit | None, calls: CallReader | None) -> None:
        self._split, self._reader = split, calls

    def push(self, text: str) -> Added:
        """Return the parts that a piece of text adds."""
        thoughts, said = self._split.push(text) if self._split else ("", text)
        said, calls = self._reader.push(said) if self._reader else (said, [])
        return Added(thoughts, said, calls)

    def finish(self) -> Added:
        """Return the parts held back so far, at the end."""
        thoughts, rest = self._split.finish() if self._split else ("", "")
        said, calls = self._reader.push(rest) if self._reader else (rest, [])
        more, last = self._reader.finish() if self._reader else ("", [])
        return Added(thoughts, said + more, [*calls, *last])


@dataclass
class Block:
    """Part of an answer; the text of a call is its arguments, in JSON."""

    kind: BlockKind
    number: int
    name: str = ""  # of the tool that is called
    text: str = ""  # so far
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24])


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """Change of a block: it begins, grows by `text`, or ends."""

    what: Literal["begin", "more", "end"]
    block: Block
    text: str = ""


class BlockWriter:
    """Writer of an answer's parts into blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open: Block | None = None
        self._calls = 0

    def push(self, added: Added) -> Iterator[BlockEvent]:
        """Yield the events of the next parts; more of an open call comes before the text after it."""
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
        """Yield the end of the open block, if there is one."""
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
    """Growth of an answer by one step: its events, all blocks so far, and whether the answer has ended."""

    events: Sequence[BlockEvent]
    blocks: Sequence[Block]
    choice: Choice
    ended: bool = False

    @property
    def called(self) -> bool:
        """Return whether the answer calls tools."""
        return any(block.kind == "call" for block in self.blocks)


async def growth(state: AppState, generation: GenerationRequest, parts: AnswerParts) -> AsyncGenerator[Grown]:
    """Yield the growth of the only choice, step by step. Closing the generator stops the engine within one step."""
    writer = BlockWriter()
    async with aclosing(pieces(state, generation)) as source:
        async for piece in source:
            ended = bool(piece.choice.finish) and not piece.text and not piece.chosen
            added = parts.finish() if ended else parts.push(piece.text)
            events = [*writer.push(added), *(writer.finish() if ended else ())]
            yield Grown(events, writer.blocks, piece.choice, ended)


async def whole(state: AppState, generation: GenerationRequest, parts: AnswerParts) -> Grown:
    """Run the only choice to its end and return its last growth."""
    async with aclosing(growth(state, generation, parts)) as source:
        grown = [one async for one in source]
    return grown[-1]
