"""Reads answers whose thoughts stand between two marker tokens: Qwen's `<think>`, Gemma's `<|channel>thought`."""

from collections.abc import Iterable
from dataclasses import dataclass

from localdflash.text.stream import Detokenizer
from localdflash.text.thoughts import ThoughtWriter
from localdflash.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ThoughtMarks:
    """The marker tokens around thoughts, what follows the first as text, and how a template writes both."""

    opening: str
    closing: str
    label: str
    before: str
    after: str


class MarkedText:
    """The text of a growing sequence of ids, in the form of `thoughts`; `begun` is the text before it.

    `thinking` says that the prompt ends inside thoughts.
    """

    def __init__(self, tokenizer: Tokenizer, marks: ThoughtMarks, begun: str = "", *, thinking: bool = False) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._opening, self._closing = tokenizer.special(marks.opening), tokenizer.special(marks.closing)
        self._label, self._writer = marks.label, ThoughtWriter(begun)
        self._thinking = thinking
        self._seen: str | None = None  # of a label under way

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain with these ids."""
        return "".join(map(self._token, ids))

    def finish(self) -> str:
        """The text held back so far, at the end."""
        return self._text(self._detokenizer.finish())

    def _token(self, token: int) -> str:
        if token not in (self._opening, self._closing):
            return self._text(self._detokenizer.push([token]))
        rest = self._text(self._detokenizer.finish())
        self._thinking = token == self._opening
        self._seen = "" if self._thinking and self._label else None
        return rest if self._thinking else rest + self._writer.close()

    def _text(self, text: str) -> str:
        if not self._thinking:
            return self._writer.said(text)
        if self._seen is None:
            return self._writer.thought(text)
        self._seen += text
        if self._label.startswith(self._seen):
            return ""  # a label that is cut short is no thought
        text, self._seen = self._seen.removeprefix(self._label), None
        return self._writer.thought(text)
