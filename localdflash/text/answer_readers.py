"""Decoders of answers for two model families: token ids to one text in the form of `thoughts`.

`MarkedText`: thoughts stand between two marker tokens (Qwen's `<think>`, Gemma's `<|channel>thought`).

`HarmonyText`: gpt-oss's format, messages one after another, each with a header that names its channel:

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>

Messages in the channel `analysis` are thoughts. All others belong to the answer: `final`, and `commentary` without a
recipient. A message with a recipient (`to=functions.x`) is a tool call; it stays unmodified, with its header. Text
without a header, as under a grammar, is the answer.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from localdflash.text.stream import Detokenizer
from localdflash.text.thoughts import ThoughtWriter, split
from localdflash.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ThoughtMarks:
    """Marker tokens around thoughts, the text after the opening one, and both as a template writes them."""

    opening: str
    closing: str
    label: str
    before: str
    after: str


class MarkedText:
    """`TextDecoder` of answers with marked thoughts. `begun` is the text before the first id.

    `thinking`: the prompt ends inside thoughts.
    """

    def __init__(self, tokenizer: Tokenizer, marks: ThoughtMarks, begun: str = "", *, thinking: bool = False) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._opening, self._closing = tokenizer.special(marks.opening), tokenizer.special(marks.closing)
        self._label, self._writer = marks.label, ThoughtWriter(begun)
        self._thinking = thinking
        self._seen: str | None = None  # the part of a label read so far

    def push(self, ids: Iterable[int]) -> str:
        """See `TextDecoder`."""
        return "".join(map(self._token, ids))

    def finish(self) -> str:
        """See `TextDecoder`."""
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
            return self._writer.add_answer(text)
        if self._seen is None:
            return self._writer.add_thought(text)
        self._seen += text
        if self._label.startswith(self._seen):
            return ""  # an incomplete label is not part of the thoughts
        text, self._seen = self._seen.removeprefix(self._label), None
        return self._writer.add_thought(text)


_MARK = re.compile(r"(<\|[a-z]+\|>)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=[^\s<]")
_START, _MESSAGE = "<|start|>", "<|message|>"
_IN_HEADERS = ("<|channel|>", "<|constrain|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")


class HarmonyText:
    """`TextDecoder` of gpt-oss's answers. `begun` is the text before the first id.

    `header`: the part of the first message's header that the prompt holds, after `<|start|>assistant`.
    """

    def __init__(self, tokenizer: Tokenizer, begun: str = "", header: str = "") -> None:
        names = (_START, _MESSAGE, *_IN_HEADERS, *_ENDS)
        self._marks = {tokenizer.special(name): name for name in names if tokenizer.has_special(name)}
        self._detokenizer, self._writer = Detokenizer(tokenizer), ThoughtWriter(begun)
        self._header: str | None = ""  # the current message's header so far; None inside its text
        self._is_thought = False  # the current message
        self._has_text = bool(split(begun)[1])  # the answer
        for part in _MARK.split(header):
            self._mark(part) if part in self._marks.values() else self._text(part)
        self._is_first = self._header is not None  # the next text, in its message

    def push(self, ids: Iterable[int]) -> str:
        """See `TextDecoder`."""
        return "".join(map(self._token, ids))

    def finish(self) -> str:
        """See `TextDecoder`; an incomplete header has no text."""
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
        """Begin the message after its header."""
        calls = bool(_RECIPIENT.search(header))
        channel = _CHANNEL.search(header)
        self._is_thought = not calls and channel is not None and channel[1] == "analysis"
        closed = self._writer.close() if self._writer.thinking and not self._is_thought else ""
        if not calls:
            return closed + self._message("")
        called = header if header.startswith(_START) else f"{_START}assistant{header}"
        return closed + self._message(called + _MESSAGE)

    def _message(self, text: str) -> str:
        """Begin a message with this text."""
        self._header, self._is_first = None, True
        return self._text(text)

    def _text(self, text: str) -> str:
        if self._header is not None:
            self._header += text
            if "<|" in self._header or "to=".startswith(self._header.lstrip()[:3]):
                return ""
            self._is_thought = False
            return self._message(self._header)  # no header: text of the answer
        if not text:
            return ""
        is_first, self._is_first = self._is_first, False
        if self._is_thought:
            return self._writer.add_thought("\n\n" + text if is_first else text)
        text = "\n\n" + text if is_first and self._has_text else text
        self._has_text = True
        return self._writer.add_answer(text)
