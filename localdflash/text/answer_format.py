"""Answer formats of model families: the tokens around thoughts, the answer and tool calls.

The format follows from the model's vocabulary, never from its name. Markers are recognised by token id, so a message
that spells a marker stays text. Every decoder returns thoughts and answer as one text (`thoughts.join_thoughts`).

`MarkedText`: thoughts are between two markers (Qwen's `<think>`, Gemma's `<|channel>thought`).
`HarmonyText`: an answer of gpt-oss is several messages; messages in the channel `analysis` are thoughts:

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from localdflash.text.chat_template import TemplateValue
from localdflash.text.stream import Detokenizer, TextDecoder
from localdflash.text.thoughts import ThoughtWriter, split_thoughts
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.user_text import PromptStretch

FirstPart = Literal["", "text", "call"]  # required first part of the answer; "" leaves the choice to the model
LOWEST_EFFORT = "low"  # `reasoning_effort` for templates that cannot switch thinking off


@dataclass(frozen=True)
class ThoughtMarkers:
    """Markers around thoughts, the label after the opening one, and the template's text around thoughts with both."""

    opening: str
    closing: str
    label: str
    before: str
    after: str


class MarkedText:
    """`TextDecoder` of an answer that continues `begun`; `thinking`: the prompt ends inside thoughts."""

    def __init__(self, tokenizer: Tokenizer, markers: ThoughtMarkers, begun: str, *, thinking: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._opening, self._closing = tokenizer.special(markers.opening), tokenizer.special(markers.closing)
        self._label, self._writer = markers.label, ThoughtWriter(begun)
        self._thinking = thinking
        self._label_read: str | None = None  # incomplete label; None outside a label

    def push(self, ids: Iterable[int]) -> str:
        """See `TextDecoder`."""
        return "".join(map(self._push_token, ids))

    def finish(self) -> str:
        """See `TextDecoder`."""
        return self._push_text(self._detokenizer.finish())

    def _push_token(self, token: int) -> str:
        if token not in (self._opening, self._closing):
            return self._push_text(self._detokenizer.push([token]))
        rest = self._push_text(self._detokenizer.finish())
        self._thinking = token == self._opening
        self._label_read = "" if self._thinking and self._label else None
        return rest if self._thinking else rest + self._writer.close()

    def _push_text(self, text: str) -> str:
        if not self._thinking:
            return self._writer.add_answer(text)
        if self._label_read is None:
            return self._writer.add_thought(text)
        self._label_read += text
        if self._label.startswith(self._label_read):
            return ""  # an incomplete label is not part of the thoughts
        text, self._label_read = self._label_read.removeprefix(self._label), None
        return self._writer.add_thought(text)


_MARKER = re.compile(r"(<\|[a-z]+\|>)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=[^\s<]")
_START, _MESSAGE = "<|start|>", "<|message|>"
_HEADER_MARKERS = ("<|channel|>", "<|constrain|>")
_END_MARKERS = ("<|end|>", "<|call|>", "<|return|>")


class HarmonyText:
    """`TextDecoder` of a gpt-oss answer.

    `begun`: text of the answer that the prompt already contains. `header`: the template's text after the
    prompt's last `<|start|>assistant`, where the answer's current message begins.
    """

    def __init__(self, tokenizer: Tokenizer, begun: str = "", header: str = "") -> None:
        names = (_START, _MESSAGE, *_HEADER_MARKERS, *_END_MARKERS)
        self._marker_names = {tokenizer.special(name): name for name in names if tokenizer.has_special(name)}
        self._detokenizer, self._writer = Detokenizer(tokenizer), ThoughtWriter(begun)
        self._header: str | None = ""  # the current message's header so far; None inside its text
        self._is_thought = False  # whether the current message is thoughts
        self._has_text = bool(split_thoughts(begun)[1])  # whether the answer has text besides thoughts
        for part in _MARKER.split(header):
            self._push_marker(part) if part in self._marker_names.values() else self._push_text(part)
        self._is_first = self._header is not None  # whether the next text is the first of its message

    def push(self, ids: Iterable[int]) -> str:
        """See `TextDecoder`."""
        return "".join(map(self._push_token, ids))

    def finish(self) -> str:
        """See `TextDecoder`; a header without markers turns out to be text of the answer."""
        text = self._push_text(self._detokenizer.finish())
        if self._header is None or "<|" in self._header:
            return text
        return text + self._begin_message(self._header)

    def _push_token(self, token: int) -> str:
        marker = self._marker_names.get(token)
        if marker is None:
            return self._push_text(self._detokenizer.push([token]))
        return self._push_text(self._detokenizer.finish()) + self._push_marker(marker)

    def _push_marker(self, marker: str) -> str:
        if marker == _MESSAGE:
            return self._end_header(self._header or "")
        if marker in _HEADER_MARKERS:
            self._header = (self._header or "") + marker
        else:
            self._header = marker if marker == _START else ""
        return ""

    def _end_header(self, header: str) -> str:
        """Begin the message of this header; a call keeps its header as text, which `tool_calls` parses."""
        is_call = bool(_RECIPIENT.search(header))
        channel = _CHANNEL.search(header)
        self._is_thought = not is_call and channel is not None and channel[1] == "analysis"
        closed = self._writer.close() if self._writer.thinking and not self._is_thought else ""
        if not is_call:
            return closed + self._begin_message("")
        called = header if header.startswith(_START) else f"{_START}assistant{header}"
        return closed + self._begin_message(called + _MESSAGE)

    def _begin_message(self, text: str) -> str:
        """Begin a message with this text."""
        self._header, self._is_first = None, True
        return self._push_text(text)

    def _push_text(self, text: str) -> str:
        if self._header is not None:
            self._header += text
            if "<|" in self._header or "to=".startswith(self._header.lstrip()[:3]):
                return ""
            self._is_thought = False
            return self._begin_message(self._header)  # no header: text of the answer
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
    """Start of an answer: the stretches to add to the template's prompt, and the decoder of the ids that follow."""

    added: Sequence[PromptStretch]
    make_decoder: Callable[[Tokenizer], TextDecoder] = Detokenizer


def _start_marked(
    markers: ThoughtMarkers, prompt: Sequence[PromptStretch], begun: str, first_part: FirstPart
) -> AnswerStart:
    """Start an answer with thoughts between two markers; the template may have written the opening marker."""
    tail = _template_tail(prompt)
    inside = tail.rfind(markers.opening) > tail.rfind(markers.closing)
    thought, answer, thinking = split_thoughts(begun)
    added: list[PromptStretch] = []
    if thought or thinking:
        added += [] if inside else [PromptStretch(markers.before, from_user=False)]
        added += [PromptStretch(thought, from_user=True)]
        inside = True
    if inside and (first_part or (begun and not thinking)):
        added.append(PromptStretch(markers.after, from_user=False))
        inside = False
    added.append(PromptStretch(answer, from_user=True))
    return AnswerStart(added, partial(MarkedText, markers=markers, begun=begun, thinking=inside))


def _start_harmony(prompt: Sequence[PromptStretch], begun: str, first_part: FirstPart) -> AnswerStart:
    """Start an answer of gpt-oss: several messages, each in its own channel."""
    thought, answer, thinking = split_thoughts(begun)
    added: list[PromptStretch] = []
    if thought or thinking:
        added += [
            PromptStretch("<|channel|>analysis<|message|>", from_user=False),
            PromptStretch(thought, from_user=True),
        ]
        if first_part or not thinking:
            added.append(PromptStretch("<|end|><|start|>assistant", from_user=False))
    if answer or first_part == "text":
        added += [PromptStretch("<|channel|>final<|message|>", from_user=False), PromptStretch(answer, from_user=True)]
    trusted = "".join(stretch.text for stretch in added if not stretch.from_user)
    _, written, header = (_template_tail(prompt) + trusted).rpartition("<|start|>assistant")
    return AnswerStart(added, partial(HarmonyText, begun=begun, header=header if written else ""))


# `start_answer` uses the first pair of markers that the vocabulary has.
THOUGHT_MARKERS = (
    ThoughtMarkers("<|channel>", "<channel|>", label="thought\n", before="<|channel>thought\n", after="\n<channel|>"),
    ThoughtMarkers("<think>", "</think>", label="", before="<think>\n", after="\n</think>\n\n"),
)
HARMONY_MARKERS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")


def start_answer(
    tokenizer: Tokenizer, prompt: Sequence[PromptStretch], begun: str, *, first_part: FirstPart
) -> AnswerStart:
    """Return the start of an answer that continues `begun`; with `first_part` the prompt ends outside thoughts."""
    if all(map(tokenizer.has_special, HARMONY_MARKERS)):
        return _start_harmony(prompt, begun, first_part)
    for markers in THOUGHT_MARKERS:
        if tokenizer.has_special(markers.opening) and tokenizer.has_special(markers.closing):
            return _start_marked(markers, prompt, begun, first_part)
    return AnswerStart([PromptStretch(begun, from_user=True)])


def adapt_template_variables(template: str, requested: Mapping[str, TemplateValue] | None) -> dict[str, TemplateValue]:
    """Return a request's template variables; thinking off is the lowest effort if the template knows only an effort."""
    variables = dict(requested or {})
    off = variables.get("enable_thinking") is False
    if off and "enable_thinking" not in template and "reasoning_effort" in template:
        variables.setdefault("reasoning_effort", LOWEST_EFFORT)
    return variables


def _template_tail(prompt: Sequence[PromptStretch]) -> str:
    """Return the template's text after the last user text."""
    return prompt[-1].text if prompt and not prompt[-1].from_user else ""
