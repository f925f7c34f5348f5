"""Split an answer into thoughts, text and tool calls: piece by piece, or as a sequence of growing blocks."""

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
class PartsDelta:
    """Thoughts, answer text and tool-call arguments in a piece of generated text; each may be empty."""

    thoughts: str = ""
    text: str = ""
    calls: Sequence[CallDelta] = ()


class AnswerParts:
    """Splitter of one choice's text. Without `split`, thoughts stay in the text; without `calls`, tool calls do."""

    def __init__(self, split: ThoughtSplit | None, calls: CallReader | None) -> None:
        self._split, self._reader = split, calls

    def push(self, text: str) -> PartsDelta:
        """Return the thoughts, text and calls that a piece of text adds."""
        thoughts, rest = self._split.push(text) if self._split else ("", text)
        answer, calls = self._reader.push(rest) if self._reader else (rest, [])
        return PartsDelta(thoughts, answer, calls)

    def ends_in_value(self, text: str) -> bool:
        """Return whether a whole text so far ends inside a string value of a tool call."""
        self.push(text)
        return self._reader is not None and self._reader.is_in_value

    def finish(self) -> PartsDelta:
        """Return the held-back parts at the end of the answer."""
        thoughts, rest = self._split.finish() if self._split else ("", "")
        answer, calls = self._reader.push(rest) if self._reader else (rest, [])
        more, last = self._reader.finish() if self._reader else ("", [])
        return PartsDelta(thoughts, answer + more, [*calls, *last])


@dataclass
class AnswerBlock:
    """Part of an answer. The `text` of a tool call is its arguments as JSON."""

    kind: BlockKind
    number: int
    name: str = ""  # name of the called tool
    text: str = ""  # generated so far
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24])


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """Change of a block: the block begins, grows by `text`, or ends."""

    action: Literal["begin", "more", "end"]
    block: AnswerBlock
    text: str = ""


class AnswerBlocks:
    """Blocks of the answer to a request with one choice. `choice` is set at the first step."""

    choice: Choice

    def __init__(self, parts: AnswerParts) -> None:
        self.blocks: list[AnswerBlock] = []
        self._parts = parts
        self._begun_calls = 0  # tool calls so far
        self._open: AnswerBlock | None = None

    async def run(self, state: AppState, generation: GenerationRequest) -> AsyncGenerator[BlockEvent | None]:
        """Run the request; yield None when the answer begins, then its events. Closing the generator cancels it."""
        started = False
        async with aclosing(pieces(state, generation)) as source:
            async for piece in source:
                self.choice = piece.choice
                if not started:
                    started = True
                    yield None
                for event in self.push(self._parts.finish() if piece.is_last else self._parts.push(piece.text)):
                    yield event
        for event in self.finish():
            yield event

    def push(self, delta: PartsDelta) -> Iterator[BlockEvent]:
        """Yield the events for `delta`: more arguments of the open call, then thoughts, text and new calls."""
        begun_calls = self._begun_calls  # only the newest of these is open and can get more arguments
        for call in (one for one in delta.calls if one.index < begun_calls):
            yield from self._more(call.arguments)
        texts: tuple[tuple[BlockKind, str], ...] = (("thoughts", delta.thoughts), ("text", delta.text))
        for kind, text in texts:
            if text:
                if not self._open or self._open.kind != kind:
                    yield from self._begin(kind)
                yield from self._more(text)
        for call in (one for one in delta.calls if one.index >= begun_calls):
            if call.index == self._begun_calls:
                self._begun_calls += 1
                yield from self._begin("call", call.name)
            yield from self._more(call.arguments)

    def finish(self) -> Iterator[BlockEvent]:
        """Yield the end of the open block, if there is one."""
        block, self._open = self._open, None
        if block:
            yield BlockEvent("end", block)

    def _begin(self, kind: BlockKind, name: str = "") -> Iterator[BlockEvent]:
        yield from self.finish()
        self._open = AnswerBlock(kind, len(self.blocks), name)
        self.blocks.append(self._open)
        yield BlockEvent("begin", self._open)

    def _more(self, text: str) -> Iterator[BlockEvent]:
        if text and self._open:
            self._open.text += text
            yield BlockEvent("more", self._open, text)
