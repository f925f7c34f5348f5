"""Assemble an infill prompt within a token budget: head (code from elsewhere), prefix, suffix, middle.

The *anchor* is the position where the prefix ends and the middle begins, normally the start of the cursor's line: text
after it is encoded again at every keystroke. Formats of order "spm" put the suffix before the prefix. Parts that change
least come first, and their sizes are rounded up, so that the next keystroke reuses most of the KV cache.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.encoder import MAX_CHARS_PER_TOKEN, Encoder, TextPiece, keep_first, keep_last
from localdflash.text.fim_formats import FimFormat, arrange_prompt, repository_head

MAX_PROMPT_TOKENS = 2048
HEAD_SHARE, SUFFIX_SHARE = 0.35, 0.20  # maximum shares of the prompt; the prefix gets the remaining tokens
STEP_TOKENS = 64  # sizes of head, suffix and answer are rounded up to multiples; also minimum of a truncated head piece
MARKER_TOKENS = 8  # reserved for BOS and the FIM markers
MAX_LINE_CHARS = 400  # an anchor less than this far into its line moves to the start of the line
MIN_ANSWER_TOKENS = 128  # reserved; a request for 0 tokens that only fills the KV cache gets the same prompt
_EMPTY_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_COMMENTS = {"python": "#", "lua": "--"}


@dataclass(frozen=True)
class Gap:
    """Position to complete in a file, and the text around it."""

    path: str
    language: str
    prefix: str  # up to the anchor
    middle: str  # from the anchor to the cursor
    suffix: str
    first_line: int = 0  # number of the first line of `prefix` in the file, 0-based
    closers: str = ""  # closers that the editor inserted before `suffix`; the completion may contain them too

    def without(self, word: str) -> "Gap":
        """Return the gap without the unfinished `word` before the cursor."""
        length = len(word)
        if len(self.middle) >= length:
            return replace(self, middle=self.middle[: len(self.middle) - length])
        end = len(self.prefix) - (length - len(self.middle))
        return replace(self, prefix=self.prefix[:end], middle="")


@dataclass(frozen=True)
class PromptPart:
    """Part of the prompt, as shown to the user."""

    kind: str  # "prefix", "middle", "word", "suffix", or the kind of a `ContextPiece`
    name: str
    tokens: int  # 0 if left out, and for kind "word", which the model generates again
    text: str
    left_out: bool = False
    cut: bool = False  # only the piece `text` is in the prompt
    lines: tuple[int, int] | None = None  # first and last line in the file, 0-based


@dataclass(frozen=True)
class TokenBudget:
    """Token limits of the prompt's parts."""

    context: int  # length of the model's context
    prompt: int  # all parts together, without markers
    answer: int  # reserved for the completion
    head: int
    prefix: int
    suffix: int
    middle: int


@dataclass(frozen=True)
class InfillPrompt:
    """Token ids of a prompt, its parts, and the maximum number of completion tokens."""

    ids: list[int]
    parts: list[PromptPart]
    budget: TokenBudget
    max_tokens: int

    @property
    def truncated(self) -> bool:
        """Return whether text before or after the cursor was cut."""
        return any(part.cut for part in self.parts if part.kind in ("prefix", "suffix"))

    def explain(self) -> dict[str, Any]:
        """Return the parts, included or left out, as JSON values."""
        return {"prompt": [asdict(part) for part in self.parts], "budget": asdict(self.budget)}


def assemble(
    encoder: Encoder,
    fim: FimFormat,
    context: int,  # length of the model's context, in tokens
    gap: Gap,
    others: Sequence[ContextPiece],  # code from elsewhere, in prompt order
    max_tokens: int,  # longest completion
    word: str = "",  # unfinished word removed from the gap, to be generated again (token healing)
    max_prompt_tokens: int = MAX_PROMPT_TOKENS,
) -> InfillPrompt:
    """Return the prompt for a gap."""
    gap = _normalize(gap)
    if not fim.markers:
        gap = replace(gap, prefix=gap.prefix + gap.middle, middle="", suffix="")
    max_tokens = min(max_tokens, context // 2)
    answer = min(_round_up(max(max_tokens, MIN_ANSWER_TOKENS)), context // 2)
    room = max(min(max_prompt_tokens, context - answer) - MARKER_TOKENS, 0)
    max_middle = room // 8
    gap, between, middle = _split_middle(encoder, gap, max_middle)
    max_head, max_suffix = int(room * HEAD_SHARE), int(room * SUFFIX_SHARE)
    after = keep_first(encoder, gap.suffix, max_suffix)
    min_prefix = max(room - max_middle - max_head - _round_up(len(after.ids)), 0)
    start = keep_last(encoder, gap.prefix, min_prefix, gap.first_line).start
    shown = gap.prefix[start:] + between + gap.suffix[: after.end]
    others = [_without_shown(one, shown) if one.name == gap.path else one for one in others]
    others = [one for one in others if one.text]
    head, other_parts = _head(encoder, fim, gap, others, max_head)
    prefix_room = max(room - max_middle - _round_up(len(head)) - _round_up(len(after.ids)), 0)
    before, between_ids = keep_last(encoder, gap.prefix, prefix_room, gap.first_line), encoder.text(between)
    before = replace(before, end=before.end + len(between), ids=(*before.ids, *between_ids))
    gap = replace(gap, prefix=gap.prefix + between)
    budget = TokenBudget(context, room, answer, max_head, prefix_room + len(between_ids), max_suffix, max_middle)
    ids = arrange_prompt(fim, encoder.tokenizer, head, before.ids, after.ids, middle)
    parts = [*other_parts, *_own_parts(gap, before, after, len(middle), word)]
    return InfillPrompt(ids, parts, budget, max_tokens)


def _round_up(tokens: int) -> int:
    return -(-tokens // STEP_TOKENS) * STEP_TOKENS


def _normalize(gap: Gap) -> Gap:
    """Return the gap with LF line ends and its anchor moved to a line start, after empty lines of the middle."""
    prefix, middle, suffix = (text.replace("\r\n", "\n") for text in (gap.prefix, gap.middle, gap.suffix))
    line = prefix.rfind("\n") + 1
    if len(prefix) - line < MAX_LINE_CHARS:
        prefix, middle = prefix[:line], prefix[line:] + middle
    trimmed = _EMPTY_LINES.sub("", middle)
    return replace(gap, prefix=prefix + middle[: len(middle) - len(trimmed)], middle=trimmed, suffix=suffix)


def _split_middle(encoder: Encoder, gap: Gap, max_tokens: int) -> tuple[Gap, str, list[int]]:
    """Return the gap with the cursor line's code as `middle`, the text between anchor and code, and the code's ids.

    In the prompt the text between follows the prefix, but the prefix is truncated without it: Enter does not move its
    start. If together they exceed `max_tokens`, the text between moves into the prefix, then also the code.
    """
    code = gap.middle[gap.middle.rfind("\n") + 1 :].lstrip(" \t")
    between = gap.middle[: len(gap.middle) - len(code)]
    if len(code) > max_tokens * MAX_CHARS_PER_TOKEN or len(ids := encoder.text(code)) > max_tokens:
        return replace(gap, prefix=gap.prefix + gap.middle, middle=""), "", []
    if len(between) > max_tokens * MAX_CHARS_PER_TOKEN or len(encoder.text(between)) + len(ids) > max_tokens:
        gap, between = replace(gap, prefix=gap.prefix + between), ""
    return replace(gap, middle=code), between, ids


def _without_shown(own: ContextPiece, shown: str) -> ContextPiece:
    """Return a piece of the gap's own file without the paragraphs whose first line is in `shown`."""
    paragraphs = [text for text in own.text.split("\n\n") if text.partition("\n")[0] not in shown]
    return replace(own, text="\n\n".join(paragraphs))


def _head(
    encoder: Encoder, fim: FimFormat, gap: Gap, others: Sequence[ContextPiece], max_tokens: int
) -> tuple[list[int], list[PromptPart]]:
    """Return the ids of the `others` that fit, in order, and a part for each piece.

    Room goes to pieces of the gap's own file first, then by weight.
    """
    frame = repository_head(fim, encoder.tokenizer)
    ids: dict[int, list[int]] = {}
    cuts: dict[int, TextPiece] = {}
    room = max_tokens - len(frame.begin) - len(frame.end)
    for index in sorted(range(len(others)), key=lambda index: (others[index].name != gap.path, -others[index].weight)):
        other = others[index]
        label = f"{other.name}\n" if fim.file_tokens else f"{_COMMENTS.get(gap.language, '//')} {other.name}\n"
        title = [*frame.before_each, *encoder.text(label.replace("\r", " "))]
        text = other.text.replace("\r\n", "\n").rstrip() + "\n"
        piece = keep_first(encoder, text, room - len(title))
        if piece.end < len(text) and len(piece.ids) < STEP_TOKENS:
            continue  # too short to help
        ids[index], cuts[index] = [*title, *piece.ids], piece
        room -= len(ids[index])
    parts = [
        PromptPart(one.kind, one.name, len(ids[i]), one.text[: cuts[i].end], cut=cuts[i].end < len(one.text.rstrip()))
        if i in ids
        else PromptPart(one.kind, one.name, 0, one.text, left_out=True)
        for i, one in enumerate(others)
    ]
    if not ids:
        return [], parts
    return [*frame.begin, *(token for i in sorted(ids) for token in ids[i]), *frame.end], parts


def _own_parts(gap: Gap, before: TextPiece, after: TextPiece, middle_tokens: int, word: str) -> list[PromptPart]:
    first = gap.first_line + gap.prefix.count("\n", 0, before.start)
    code = gap.first_line + gap.prefix.count("\n")
    cursor = code + gap.middle.count("\n")
    text, rest = gap.prefix[before.start :], gap.suffix[: after.end]
    last = cursor + rest.removesuffix("\n").count("\n")
    return [
        PromptPart("prefix", gap.path, len(before.ids), text, cut=before.start > 0, lines=(first, code)),
        PromptPart("middle", gap.path, middle_tokens, gap.middle, lines=(code, cursor)),
        *([PromptPart("word", gap.path, 0, word, lines=(cursor, cursor))] if word else []),
        PromptPart("suffix", gap.path, len(after.ids), rest, cut=after.end < len(gap.suffix), lines=(cursor, last)),
    ]
