"""Answer formats of model families: the tokens around thoughts, the answer and tool calls.

The format follows from the model's vocabulary and chat template, never from the model's name. Every format decodes to
one text in the form of `thoughts`; tool calls pass through unmodified. Markers are recognised by token id, so a message
that spells a marker stays text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from localdflash.text import thoughts
from localdflash.text.answer_readers import HarmonyText, MarkedText, ThoughtMarks
from localdflash.text.stream import Detokenizer, TextDecoder
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.user_text import PromptStretch

FirstPart = Literal["", "text", "call"]  # of an answer without thoughts; "" leaves it to the model
LOWEST_EFFORT = "low"  # for templates that cannot switch thinking off


@dataclass(frozen=True)
class AnswerStart:
    """Start of an answer: the text to add to the template's prompt, and the decoder of the ids that follow."""

    prompt: Sequence[PromptStretch]
    spelling: Callable[[Tokenizer], TextDecoder] = Detokenizer


class AnswerFormat(Protocol):
    """Answer format of a model family."""

    def start(self, prompt: Sequence[PromptStretch], begun: str, *, first_part: FirstPart) -> AnswerStart:
        """Return the start of an answer that continues `begun`; with `first_part` the answer has no thoughts."""


class PlainFormat:
    """Format without thoughts: all text is the answer."""

    def start(self, prompt: Sequence[PromptStretch], begun: str, *, first_part: FirstPart) -> AnswerStart:
        """See `AnswerFormat`."""
        return AnswerStart([PromptStretch(begun, True)])


@dataclass(frozen=True)
class MarkedFormat:
    """Format with thoughts between two markers; the template may have written the opening one."""

    marks: ThoughtMarks

    def start(self, prompt: Sequence[PromptStretch], begun: str, *, first_part: FirstPart) -> AnswerStart:
        """See `AnswerFormat`."""
        marks, tail = self.marks, _template_tail(prompt)
        inside = tail.rfind(marks.opening) > tail.rfind(marks.closing)
        thought, said, thinking = thoughts.split(begun)
        added: list[PromptStretch] = []
        if thought or thinking:
            added += [] if inside else [PromptStretch(marks.before, False)]
            added += [PromptStretch(thought, True)]
            inside = True
        if inside and (first_part or (begun and not thinking)):
            added.append(PromptStretch(marks.after, False))
            inside = False
        added.append(PromptStretch(said, True))
        return AnswerStart(added, partial(MarkedText, marks=marks, begun=begun, thinking=inside))


class HarmonyFormat:
    """Format of gpt-oss: an answer is several messages, each in its own channel."""

    def start(self, prompt: Sequence[PromptStretch], begun: str, *, first_part: FirstPart) -> AnswerStart:
        """See `AnswerFormat`."""
        thought, said, thinking = thoughts.split(begun)
        added: list[PromptStretch] = []
        if thought or thinking:
            added += [PromptStretch("<|channel|>analysis<|message|>", False), PromptStretch(thought, True)]
            if first_part or not thinking:
                added.append(PromptStretch("<|end|><|start|>assistant", False))
        if said or first_part == "text":
            added += [PromptStretch("<|channel|>final<|message|>", False), PromptStretch(said, True)]
        trusted = "".join(piece.text for piece in added if not piece.from_user)
        _, written, header = (_template_tail(prompt) + trusted).rpartition("<|start|>assistant")
        return AnswerStart(added, partial(HarmonyText, begun=begun, header=header if written else ""))


# In the order of detection: the first whose markers are tokens of the model.
MARKS = (
    ThoughtMarks("<|channel>", "<channel|>", label="thought\n", before="<|channel>thought\n", after="\n<channel|>"),
    ThoughtMarks("<think>", "</think>", label="", before="<think>\n", after="\n</think>\n\n"),
)
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")


def format_of(tokenizer: Tokenizer) -> AnswerFormat:
    """Return the answer format of a model."""
    if all(map(tokenizer.has_special, HARMONY)):
        return HarmonyFormat()
    for marks in MARKS:
        if tokenizer.has_special(marks.opening) and tokenizer.has_special(marks.closing):
            return MarkedFormat(marks)
    return PlainFormat()


def template_switches(template: str, requested: Mapping[str, str | bool] | None) -> dict[str, str | bool]:
    """Return a request's template variables in the form of this template.

    A template without an on/off switch for thinking gets the lowest effort where thinking is switched off.
    """
    variables = dict(requested or {})
    off = variables.get("enable_thinking") is False
    if off and "enable_thinking" not in template and "reasoning_effort" in template:
        variables.setdefault("reasoning_effort", LOWEST_EFFORT)
    return variables


def _template_tail(prompt: Sequence[PromptStretch]) -> str:
    """Return the template's text after the last user text."""
    return prompt[-1].text if prompt and not prompt[-1].from_user else ""
