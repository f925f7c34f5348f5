"""Answer formats of model families: the tokens around thoughts, the answer and tool calls.

The format follows from the model's vocabulary, never from its name. Markers are recognised by token id, so a message
that spells a marker stays text. Every format decodes to one text in the form of `thoughts`.

`MarkedText`: thoughts are between two marker tokens (Qwen's `<think>`, Gemma's `<|channel>thought`).
`HarmonyText`: an answer of gpt-oss is several messages; messages in the channel `analysis` are thoughts:

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from localdflash.text import thoughts
from localdflash.text.stream import Detokenizer, TextDecoder
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.user_text import PromptStretch

FirstPart = Literal["", "text", "call"]  # required first part of the answer; "" leaves the choice to the model
LOWEST_EFFORT = "low"  # for templates that cannot switch thinking off


@dataclass(frozen=True)
class ThoughtMarks:
    """Marker tokens around thoughts, the label after the opening marker, and the template's text on both sides."""

    opening: str
    closing: str
    label: str
    before: str
    after: str


class MarkedText:
    """`TextDecoder` of an answer that continues `begun`; `thinking`: the prompt ends inside thoughts."""

    def __init__(self, tokenizer: Tokenizer, marks: ThoughtMarks, begun: str = "", *, thinking: bool = False) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._opening, self._closing = tokenizer.special(marks.opening), tokenizer.special(marks.closing)
        self._label, self._writer = marks.label, thoughts.ThoughtWriter(begun)
        self._thinking = thinking
        self._label_read: str | None = None  # incomplete label; None outside a label

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
        self._label_read = "" if self._thinking and self._label else None
        return rest if self._thinking else rest + self._writer.close()

    def _text(self, text: str) -> str:
        if not self._thinking:
            return self._writer.add_answer(text)
        if self._label_read is None:
            return self._writer.add_thought(text)
        self._label_read += text
        if self._label.startswith(self._label_read):
            return ""  # an incomplete label is not part of the thoughts
        text, self._label_read = self._label_read.removeprefix(self._label), None
        return self._writer.add_thought(text)


_MARK = re.compile(r"(<\|[a-z]+\|>)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=[^\s<]")
_START, _MESSAGE = "<|start|>", "<|message|>"
_IN_HEADERS = ("<|channel|>", "<|constrain|>")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")


class HarmonyText:
    """`TextDecoder` of a gpt-oss answer.

    `begun`: text of the answer that the prompt already contains. `header`: start of the first message's header there.
    """

    def __init__(self, tokenizer: Tokenizer, begun: str = "", header: str = "") -> None:
        names = (_START, _MESSAGE, *_IN_HEADERS, *_ENDS)
        self._marks = {tokenizer.special(name): name for name in names if tokenizer.has_special(name)}
        self._detokenizer, self._writer = Detokenizer(tokenizer), thoughts.ThoughtWriter(begun)
        self._header: str | None = ""  # the current message's header so far; None inside its text
        self._is_thought = False  # of the current message
        self._has_text = bool(thoughts.split(begun)[1])  # of the answer, besides thoughts
        for part in _MARK.split(header):
            self._mark(part) if part in self._marks.values() else self._text(part)
        self._is_first = self._header is not None  # whether the next text begins its message

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


@dataclass(frozen=True)
class AnswerStart:
    """Start of an answer: the text to add to the template's prompt, and the decoder of the ids that follow."""

    prompt: Sequence[PromptStretch]
    make_decoder: Callable[[Tokenizer], TextDecoder] = Detokenizer


def _start_marked(
    marks: ThoughtMarks, prompt: Sequence[PromptStretch], begun: str, first_part: FirstPart
) -> AnswerStart:
    """Start an answer with thoughts between two markers; the template may have written the opening one."""
    tail = _template_tail(prompt)
    inside = tail.rfind(marks.opening) > tail.rfind(marks.closing)
    thought, answer, thinking = thoughts.split(begun)
    added: list[PromptStretch] = []
    if thought or thinking:
        added += [] if inside else [PromptStretch(marks.before, False)]
        added += [PromptStretch(thought, True)]
        inside = True
    if inside and (first_part or (begun and not thinking)):
        added.append(PromptStretch(marks.after, False))
        inside = False
    added.append(PromptStretch(answer, True))
    return AnswerStart(added, partial(MarkedText, marks=marks, begun=begun, thinking=inside))


def _start_harmony(prompt: Sequence[PromptStretch], begun: str, first_part: FirstPart) -> AnswerStart:
    """Start an answer of gpt-oss: several messages, each in its own channel."""
    thought, answer, thinking = thoughts.split(begun)
    added: list[PromptStretch] = []
    if thought or thinking:
        added += [PromptStretch("<|channel|>analysis<|message|>", False), PromptStretch(thought, True)]
        if first_part or not thinking:
            added.append(PromptStretch("<|end|><|start|>assistant", False))
    if answer or first_part == "text":
        added += [PromptStretch("<|channel|>final<|message|>", False), PromptStretch(answer, True)]
    trusted = "".join(piece.text for piece in added if not piece.from_user)
    _, written, header = (_template_tail(prompt) + trusted).rpartition("<|start|>assistant")
    return AnswerStart(added, partial(HarmonyText, begun=begun, header=header if written else ""))


# In the order of detection: the first whose markers are tokens of the model.
MARKS = (
    ThoughtMarks("<|channel>", "<channel|>", label="thought\n", before="<|channel>thought\n", after="\n<channel|>"),
    ThoughtMarks("<think>", "</think>", label="", before="<think>\n", after="\n</think>\n\n"),
)
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")


def start_answer(
    tokenizer: Tokenizer, prompt: Sequence[PromptStretch], begun: str, *, first_part: FirstPart
) -> AnswerStart:
    """Return the start of an answer that continues `begun`; with `first_part` the answer has no thoughts."""
    if all(map(tokenizer.has_special, HARMONY)):
        return _start_harmony(prompt, begun, first_part)
    for marks in MARKS:
        if tokenizer.has_special(marks.opening) and tokenizer.has_special(marks.closing):
            return _start_marked(marks, prompt, begun, first_part)
    return AnswerStart([PromptStretch(begun, True)])


def template_switches(template: str, requested: Mapping[str, str | bool] | None) -> dict[str, str | bool]:
    """Return a request's template variables; thinking switched off becomes the lowest effort if there is no switch."""
    variables = dict(requested or {})
    off = variables.get("enable_thinking") is False
    if off and "enable_thinking" not in template and "reasoning_effort" in template:
        variables.setdefault("reasoning_effort", LOWEST_EFFORT)
    return variables


def _template_tail(prompt: Sequence[PromptStretch]) -> str:
    """Return the template's text after the last user text."""
    return prompt[-1].text if prompt and not prompt[-1].from_user else ""
