"""Assemble the prompt of a completion within a budget of tokens.

    head (other code) | prefix up to the anchor | suffix | middle: the cursor's line, from its first code on

Parts that change least come first, and room is used in coarse steps, so that the next key keeps their KV cache.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.encoder import MAX_CHARS_PER_TOKEN, Cut, Encoder, first_of, last_of
from localdflash.text.fim_formats import FimFormat, arrange_prompt, repository_head

MAX_PROMPT_TOKENS = 2048
HEAD_SHARE, SUFFIX_SHARE = 0.35, 0.20  # of the prompt, at most
STEP_TOKENS = 64  # in which room is used, and the least of a part that is cut
MARKER_TOKENS = 8
MAX_LINE_CHARS = 400  # of the cursor's line that may go into the middle
MIN_ANSWER_TOKENS = 128  # reserved, so that a warming request has the same prompt as the completion after it
_EMPTY_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_COMMENTS = {"python": "#", "lua": "--"}


@dataclass(frozen=True)
class Gap:
    """Position to complete. `prefix` ends at the anchor and begins with line `first_line`, from 0, of its file.

    `closed`: closing brackets between cursor and `suffix` that the editor inserted; an answer may close them again.
    """

    path: str
    language: str
    prefix: str
    middle: str
    suffix: str
    first_line: int = 0
    closed: str = ""

    def without(self, word: str) -> "Gap":
        """Return the gap without a word at the cursor."""
        length = len(word)
        if len(self.middle) >= length:
            return replace(self, middle=self.middle[: len(self.middle) - length])
        kept = len(self.prefix) - (length - len(self.middle))
        return replace(self, prefix=self.prefix[:kept], middle="")


@dataclass(frozen=True)
class PromptPart:
    """Part of the prompt."""

    kind: str
    name: str
    tokens: int  # 0 if it was left out, and for kind "word", which the answer begins with
    text: str
    left_out: bool = False
    cut: bool = False  # only a piece of it is in the prompt
    lines: tuple[int, int] | None = None  # first and last in the file, from 0


@dataclass(frozen=True)
class TokenBudget:
    """Tokens: the model's context, the prompt's limit, and the limit of each part."""

    context: int
    prompt: int
    answer: int
    head: int
    prefix: int
    suffix: int
    middle: int


@dataclass(frozen=True)
class InfillPrompt:
    """Ids of a prompt, their parts, and the maximum number of answer tokens."""

    ids: list[int]
    parts: list[PromptPart]
    budget: TokenBudget
    max_tokens: int

    @property
    def truncated(self) -> bool:
        """Return whether text before or after the cursor was cut."""
        return any(part.cut for part in self.parts if part.kind in ("prefix", "suffix"))

    def explained(self) -> dict[str, Any]:
        """Return the parts, included or left out, as JSON values."""
        return {"prompt": [asdict(part) for part in self.parts], "budget": asdict(self.budget)}


def assemble(
    encoder: Encoder,
    fim: FimFormat,
    context: int,
    gap: Gap,
    others: Sequence[ContextPiece],
    max_tokens: int,
    word: str = "",
    most: int = MAX_PROMPT_TOKENS,
) -> InfillPrompt:
    """Return the prompt for a gap. `context`: tokens of the model; `word`: before the cursor, to be sampled."""
    gap = _normal(gap)
    if not fim.markers:
        gap = replace(gap, prefix=gap.prefix + gap.middle, middle="", suffix="")
    max_tokens = min(max_tokens, context // 2)
    answer = min(_up(max(max_tokens, MIN_ANSWER_TOKENS)), context // 2)
    room = max(min(most, context - answer) - MARKER_TOKENS, 0)
    most_middle = room // 8
    gap, above, middle = _split_typed(encoder, gap, most_middle)
    most_head, most_suffix = int(room * HEAD_SHARE), int(room * SUFFIX_SHARE)
    after = first_of(encoder, gap.suffix, most_suffix)
    kept = last_of(encoder, gap.prefix, max(room - most_middle - most_head - _up(len(after.ids)), 0), gap.first_line)
    shown = gap.prefix[kept.start :] + above + gap.suffix[: after.end]
    others = [_without_shown(one, shown) if one.name == gap.path else one for one in others]
    others = [one for one in others if one.text]
    head, other_parts = _head(encoder, fim, gap, others, most_head)
    left = max(room - most_middle - _up(len(head)) - _up(len(after.ids)), 0)
    before, typed = last_of(encoder, gap.prefix, left, gap.first_line), encoder.text(above)
    before = replace(before, end=before.end + len(above), ids=(*before.ids, *typed))
    gap = replace(gap, prefix=gap.prefix + above)
    budget = TokenBudget(context, room, answer, most_head, left + len(typed), most_suffix, most_middle)
    ids = arrange_prompt(fim, encoder.tokenizer, head, before.ids, after.ids, middle)
    parts = [*other_parts, *_own_parts(gap, before, after, len(middle), word)]
    return InfillPrompt(ids, parts, budget, max_tokens)


def _up(tokens: int) -> int:
    return -(-tokens // STEP_TOKENS) * STEP_TOKENS


def _normal(gap: Gap) -> Gap:
    """Return the gap with LF line ends, and the anchor at the start of its first line with code."""
    prefix, middle, suffix = (text.replace("\r\n", "\n") for text in (gap.prefix, gap.middle, gap.suffix))
    line = prefix.rfind("\n") + 1
    if len(prefix) - line < MAX_LINE_CHARS:
        prefix, middle = prefix[:line], prefix[line:] + middle
    typed = _EMPTY_LINES.sub("", middle)
    return replace(gap, prefix=prefix + middle[: len(middle) - len(typed)], middle=typed, suffix=suffix)


def _split_typed(encoder: Encoder, gap: Gap, most: int) -> tuple[Gap, str, list[int]]:
    """Return the gap, the text typed before the first code of the cursor's line, and the ids of the middle.

    As in training, the typed text follows the prefix, which is cut without it: Enter does not move the cut.
    """
    typed = gap.middle[gap.middle.rfind("\n") + 1 :].lstrip(" \t")
    above = gap.middle[: len(gap.middle) - len(typed)]
    if len(typed) > most * MAX_CHARS_PER_TOKEN or len(middle := encoder.text(typed)) > most:
        return replace(gap, prefix=gap.prefix + gap.middle, middle=""), "", []
    if len(above) > most * MAX_CHARS_PER_TOKEN or len(encoder.text(above)) + len(middle) > most:
        gap, above = replace(gap, prefix=gap.prefix + above), ""
    return replace(gap, middle=typed), above, middle


def _without_shown(own: ContextPiece, shown: str) -> ContextPiece:
    """Return code of the gap's own file without the blocks that the prompt has anyway."""
    blocks = [block for block in own.text.split("\n\n") if block.partition("\n")[0] not in shown]
    return replace(own, text="\n\n".join(blocks))


def _head(
    encoder: Encoder, fim: FimFormat, gap: Gap, others: Sequence[ContextPiece], most: int
) -> tuple[list[int], list[PromptPart]]:
    """Return the ids of other code in the given order, and its parts; pieces of least weight are left out first.

    Code of the gap's own file comes first.
    """
    frame = repository_head(fim, encoder.tokenizer)
    kept: dict[int, list[int]] = {}
    cut: dict[int, Cut] = {}
    room = most - len(frame.begin) - len(frame.end)
    for index in sorted(range(len(others)), key=lambda index: (others[index].name != gap.path, -others[index].weight)):
        one = others[index]
        label = f"{one.name}\n" if fim.files else f"{_COMMENTS.get(gap.language, '//')} {one.name}\n"
        title = [*frame.before_each, *encoder.text(label.replace("\r", " "))]
        text = one.text.replace("\r\n", "\n").rstrip() + "\n"
        piece = first_of(encoder, text, room - len(title))
        if piece.end < len(text) and len(piece.ids) < STEP_TOKENS:
            continue  # a short beginning helps little
        kept[index], cut[index] = [*title, *piece.ids], piece
        room -= len(kept[index])
    parts = [
        PromptPart(one.kind, one.name, len(kept[i]), one.text[: cut[i].end], cut=cut[i].end < len(one.text.rstrip()))
        if i in kept
        else PromptPart(one.kind, one.name, 0, one.text, left_out=True)
        for i, one in enumerate(others)
    ]
    if not kept:
        return [], parts
    return [*frame.begin, *(token for i in sorted(kept) for token in kept[i]), *frame.end], parts


def _own_parts(gap: Gap, before: Cut, after: Cut, middle: int, word: str) -> list[PromptPart]:
    start = gap.first_line + gap.prefix.count("\n", 0, before.start)
    anchor = gap.first_line + gap.prefix.count("\n")
    cursor = anchor + gap.middle.count("\n")
    text, rest = gap.prefix[before.start :], gap.suffix[: after.end]
    last = cursor + rest.removesuffix("\n").count("\n")
    return [
        PromptPart("prefix", gap.path, len(before.ids), text, cut=before.start > 0, lines=(start, anchor)),
        PromptPart("middle", gap.path, middle, gap.middle, lines=(anchor, cursor)),
        *([PromptPart("word", gap.path, 0, word, lines=(cursor, cursor))] if word else []),
        PromptPart("suffix", gap.path, len(after.ids), rest, cut=after.end < len(gap.suffix), lines=(cursor, last)),
    ]
