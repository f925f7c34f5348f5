"""Takes the text of one choice apart: what was thought, what is said, calls of tools."""

from collections.abc import Sequence
from dataclasses import dataclass

from localdflash.text.thoughts import ThoughtSplit
from localdflash.text.tool_calls import CallDelta, CallReader


@dataclass(frozen=True, slots=True)
class Added:
    """What a piece of text adds; it may be nothing."""

    thoughts: str = ""
    said: str = ""
    calls: Sequence[CallDelta] = ()


class AnswerParts:
    """The parts of one choice as its text grows; without `split` or `calls` that much stays in what is said."""

    def __init__(self, split: ThoughtSplit | None, calls: CallReader | None) -> None:
        self._split, self._reader = split, calls

    def push(self, text: str) -> Added:
        """What a piece of text adds."""
        thoughts, said = self._split.push(text) if self._split else ("", text)
        said, calls = self._reader.push(said) if self._reader else (said, [])
        return Added(thoughts, said, calls)

    def finish(self) -> Added:
        """What was held back, at the end."""
        thoughts, rest = self._split.finish() if self._split else ("", "")
        said, calls = self._reader.push(rest) if self._reader else (rest, [])
        more, last = self._reader.finish() if self._reader else ("", [])
        return Added(thoughts, said + more, [*calls, *last])
