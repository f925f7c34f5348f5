"""How a family of models writes its answers: which tokens stand around thoughts, answer and tool calls.

Chosen by what the model's vocabulary and chat template have, never by the model's name. Whatever the family's own marks
are, an answer is read as one text in the form of `thoughts`; tool calls are passed through as the model wrote them.
Tokens are told apart by their ids: a message that spells a mark in letters is text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from localdflash.text import thoughts
from localdflash.text.answer_readers import HarmonyText, MarkedText, ThoughtMarks
from localdflash.text.stream import Detokenizer, Spelling
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.user_text import PromptStretch

AtOnce = Literal["", "text", "call"]  # what an answer begins with, without thoughts; "" leaves that to the model
LEAST_EFFORT = "low"  # what a template that knows only degrees of thinking gets for none


@dataclass(frozen=True)
class Start:
    """Where an answer starts: what follows the template's prompt, and how the ids after that are spelled."""

    prompt: Sequence[PromptStretch]
    spelling: Callable[[Tokenizer], Spelling] = Detokenizer


class AnswerFormat(Protocol):
    """How a family writes its answers."""

    def start(self, prompt: Sequence[PromptStretch], begun: str, *, at_once: AtOnce) -> Start:
        """Where the answer to this prompt starts that has `begun` so far; with `at_once` no thoughts come first."""


class PlainFormat:
    """Everything that the model writes is its answer."""

    def start(self, prompt: Sequence[PromptStretch], begun: str, *, at_once: AtOnce) -> Start:
        """See `AnswerFormat`."""
        return Start([PromptStretch(begun, True)])


@dataclass(frozen=True)
class MarkedFormat:
    """Thoughts stand between two marks, of which the template may have written the first one."""

    marks: ThoughtMarks

    def start(self, prompt: Sequence[PromptStretch], begun: str, *, at_once: AtOnce) -> Start:
        """See `AnswerFormat`."""
        marks, tail = self.marks, _written_last(prompt)
        inside = tail.rfind(marks.opening) > tail.rfind(marks.closing)
        thought, said, thinking = thoughts.split(begun)
        added: list[PromptStretch] = []
        if thought or thinking:
            added += [] if inside else [PromptStretch(marks.before, False)]
            added += [PromptStretch(thought, True)]
            inside = True
        if inside and (at_once or (begun and not thinking)):
            added.append(PromptStretch(marks.after, False))
            inside = False
        added.append(PromptStretch(said, True))
        return Start(added, partial(MarkedText, marks=marks, begun=begun, thinking=inside))


class HarmonyFormat:
    """gpt-oss: an answer is several messages, each in a channel of its own."""

    def start(self, prompt: Sequence[PromptStretch], begun: str, *, at_once: AtOnce) -> Start:
        """See `AnswerFormat`."""
        thought, said, thinking = thoughts.split(begun)
        added: list[PromptStretch] = []
        if thought or thinking:
            added += [PromptStretch("<|channel|>analysis<|message|>", False), PromptStretch(thought, True)]
            if at_once or not thinking:
                added.append(PromptStretch("<|end|><|start|>assistant", False))
        if said or at_once == "text":
            added += [PromptStretch("<|channel|>final<|message|>", False), PromptStretch(said, True)]
        trusted = "".join(piece.text for piece in added if not piece.from_user)
        _, written, header = (_written_last(prompt) + trusted).rpartition("<|start|>assistant")
        return Start(added, partial(HarmonyText, begun=begun, header=header if written else ""))


# The first of these marks that a model has as tokens are those of its thoughts.
MARKS = (
    ThoughtMarks("<|channel>", "<channel|>", label="thought\n", before="<|channel>thought\n", after="\n<channel|>"),
    ThoughtMarks("<think>", "</think>", label="", before="<think>\n", after="\n</think>\n\n"),
)
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")


def format_of(tokenizer: Tokenizer) -> AnswerFormat:
    """The format of a model's answers."""
    if all(map(tokenizer.has_special, HARMONY)):
        return HarmonyFormat()
    for marks in MARKS:
        if tokenizer.has_special(marks.opening) and tokenizer.has_special(marks.closing):
            return MarkedFormat(marks)
    return PlainFormat()


def template_switches(template: str, asked: Mapping[str, str | bool] | None) -> dict[str, str | bool]:
    """The variables of a request as this template takes them: one that knows only degrees of thinking gets the least
    of them where thinking is switched off.
    """
    variables = dict(asked or {})
    off = variables.get("enable_thinking") is False
    if off and "enable_thinking" not in template and "reasoning_effort" in template:
        variables.setdefault("reasoning_effort", LEAST_EFFORT)
    return variables


def _written_last(prompt: Sequence[PromptStretch]) -> str:
    """What the template wrote after the last text of a user."""
    return prompt[-1].text if prompt and not prompt[-1].from_user else ""
