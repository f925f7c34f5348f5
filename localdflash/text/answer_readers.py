"""Readers that turn an answer's token ids into one text in the form of `thoughts`, for two families of models.

`MarkedText`: thoughts stand between two marker tokens (Qwen's `<think>`, Gemma's `<|channel>thought`).

`HarmonyText`: gpt-oss's format, messages one after another, each with a header that names its channel:

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>

Messages of the channel `analysis` are thoughts, all others are the answer: `final`, and `commentary`, which is for the
user too where it has no recipient. A message to a recipient (`to=functions.x`) is a tool call and stays as the model
wrote it, with its header. A model that writes no header, as under a grammar, is taken at its word.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from localdflash.text.stream import Detokenizer
from localdflash.text.thoughts import ThoughtWriter, split
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


_MARK = re.compile(r"(<\|[a-z]+\|>)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=[^\s<]")
_START, _MESSAGE = "<|start|>", "<|message|>"
_IN_HEADERS = ("<|channel|>", "<|constrain|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")


class HarmonyText:
    """The text of a growing sequence of ids, in the form of `thoughts`; `begun` is the text before it.

    `header` is what the prompt has of the first message, after `<|start|>assistant`.
    """

    def __init__(self, tokenizer: Tokenizer, begun: str = "", header: str = "") -> None:
        names = (_START, _MESSAGE, *_IN_HEADERS, *_ENDS)
        self._marks = {tokenizer.special(name): name for name in names if tokenizer.has_special(name)}
        self._detokenizer, self._writer = Detokenizer(tokenizer), ThoughtWriter(begun)
        self._header: str | None = ""  # of the message under way, as far as it is known; None inside its text
        self._thinks = False  # the message under way is thoughts
        self._said = bool(split(begun)[1])  # the answer has text
        for part in _MARK.split(header):
            self._mark(part) if part in self._marks.values() else self._text(part)
        self._first = self._header is not None  # the next text is the first of its message

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain with these ids."""
        return "".join(map(self._token, ids))

    def finish(self) -> str:
        """The text held back so far, at the end. A header that is cut short has none."""
        text = self._text(self._detokenizer.finish())
        if self._header is None or "<|" in self._header:
            return text
        return text + self._message(self._header)

    def _token(self, token: int) -> str:
        mark = self._marks.get(token)
        if mark is None:
            return self._text(self._detokenizer.push([token]))
        return self._text(self._detokenizer.finish()) + self._mark(mark)

    def _mark(self, mark: str) -> str:
        if mark == _MESSAGE:
            return self._begin(self._header or "")
        if mark in _IN_HEADERS:
            self._header = (self._header or "") + mark
        else:
            self._header = mark if mark == _START else ""
        return ""

    def _begin(self, header: str) -> str:
        """A message begins after its header."""
        calls = bool(_RECIPIENT.search(header))
        channel = _CHANNEL.search(header)
        self._thinks = not calls and channel is not None and channel[1] == "analysis"
        closed = self._writer.close() if self._writer.thinking and not self._thinks else ""
        if not calls:
            return closed + self._message("")
        called = header if header.startswith(_START) else f"{_START}assistant{header}"
        return closed + self._message(called + _MESSAGE)

    def _message(self, text: str) -> str:
        """The first text of a message."""
        self._header, self._first = None, True
        return self._text(text)

    def _text(self, text: str) -> str:
        if self._header is not None:
            self._header += text
            if "<|" in self._header or "to=".startswith(self._header.lstrip()[:3]):
                return ""
            self._thinks = False
            return self._message(self._header)  # which is none
        if not text:
            return ""
        first, self._first = self._first, False
        if self._thinks:
            return self._writer.thought("\n\n" + text if first else text)
        text = "\n\n" + text if first and self._said else text
        self._said = True
        return self._writer.said(text)
