"""The prompt of a completion: what goes in within a budget of tokens, in which order, and what was left out.

    head (other code) | prefix up to the anchor | suffix | middle: what was typed since the anchor

Prefix and suffix are in the order of the model's format. What changes least comes first, so that the next key adds
a few ids at the end and all others keep their keys and values. Room for what will be typed is reserved from the start,
and other room is used in coarse steps, because otherwise every key would move the cuts.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from localdflash.code.fim.cut import DENSE, Cut, first_of, last_of
from localdflash.code.fim.encoder import Encoder
from localdflash.text.fim import FimFormat, arrange, head_of_files

MOST = 2048  # tokens of a prompt: a cold prefill stays short
HEAD, SUFFIX = 0.35, 0.20  # their shares of a prompt, at most
STEP = 64  # tokens: the step in which room is taken, and the least of a part that is cut
MARKERS = 8  # tokens
LONGEST_LINE = 400  # characters of the cursor's line that may go after the middle's marker
ANSWER = 128  # room for the answer that is kept at least, so that a warming request has the prompt of what follows it
_COMMENTS = {"python": "#", "lua": "--"}


@dataclass(frozen=True)
class InfillContext:
    """Other code: where it is from, and how much it matters. `kind`: definition, import, open, recent or edit."""

    kind: str
    name: str
    text: str
    weight: float = 1.0


@dataclass(frozen=True)
class Gap:
    """The place to complete. `prefix` ends at the anchor; it begins with line `first_line`, from 0, of its file.

    `closed` stands between cursor and `suffix`: what an editor closed there, which an answer may close again.
    """

    path: str
    language: str
    prefix: str
    middle: str
    suffix: str
    first_line: int = 0
    closed: str = ""

    def without(self, word: str) -> "Gap":
        """The place without a word that stands at the cursor."""
        length = len(word)
        if len(self.middle) >= length:
            return replace(self, middle=self.middle[: len(self.middle) - length])
        kept = len(self.prefix) - (length - len(self.middle))
        return replace(self, prefix=self.prefix[:kept], middle="")


@dataclass(frozen=True)
class PromptPart:
    """A part of the prompt as it went in. `lines` are the first and last line in the file, from 0, if known.

    `cut`: there is more of it than went in. What was left out has no tokens, and its whole text. A part of kind "word"
    has none either: it is what the answer will be made to begin with.
    """

    kind: str
    name: str
    tokens: int
    text: str
    left_out: bool = False
    cut: bool = False
    lines: tuple[int, int] | None = None


@dataclass(frozen=True)
class TokenBudget:
    """Tokens: what the model holds, what the prompt may take, and the most of each part."""

    context: int
    prompt: int
    answer: int
    head: int
    prefix: int
    suffix: int
    middle: int


@dataclass(frozen=True)
class InfillPrompt:
    """The ids, what they are made of, and the most tokens that an answer may have."""

    ids: list[int]
    parts: list[PromptPart]
    budget: TokenBudget
    max_tokens: int

    @property
    def truncated(self) -> bool:
        """Whether there is more before or after the cursor than went in."""
        return any(part.cut for part in self.parts if part.kind in ("prefix", "suffix"))

    def explained(self) -> dict[str, Any]:
        """What went in and what was left out, as JSON values."""
        return {"prompt": [asdict(part) for part in self.parts], "budget": asdict(self.budget)}


def assemble(
    encoder: Encoder,
    fim: FimFormat,
    context: int,
    hole: Gap,
    others: Sequence[InfillContext],
    max_tokens: int,
    word: str = "",
    most: int = MOST,
) -> InfillPrompt:
    """The prompt for a hole in a model that holds `context` tokens. `word` is before the cursor and left to be
    drawn.
    """
    hole = _normal(hole)
    if not fim.markers:  # one text, encoded as one
        hole = replace(hole, prefix=hole.prefix + hole.middle, middle="", suffix="")
    max_tokens = min(max_tokens, context // 2)
    answer = min(_up(max(max_tokens, ANSWER)), context // 2)
    room = max(min(most, context - answer) - MARKERS, 0)
    most_middle = room // 8
    hole, middle = _middle(encoder, hole, most_middle)
    most_head, most_suffix = int(room * HEAD), int(room * SUFFIX)
    head, others_told = _head(encoder, fim, hole, others, most_head)
    after = first_of(encoder, hole.suffix, most_suffix)
    left = max(room - most_middle - _up(len(head)) - _up(len(after.ids)), 0)
    before = last_of(encoder, hole.prefix, left, hole.first_line)
    budget = TokenBudget(context, room, answer, most_head, left, most_suffix, most_middle)
    ids = arrange(fim, encoder.tokenizer, head, before.ids, after.ids, middle)
    parts = [*others_told, *_own_parts(hole, before, after, len(middle), word)]
    return InfillPrompt(ids, parts, budget, max_tokens)


def _up(tokens: int) -> int:
    return -(-tokens // STEP) * STEP


def _normal(hole: Gap) -> Gap:
    """The same place with line feeds alone, and the anchor at code: before the first code of its line.

    Middles of training text begin with code. After blanks, or in the middle of a word, models tend to end at once.
    """
    prefix, middle, suffix = (text.replace("\r\n", "\n") for text in (hole.prefix, hole.middle, hole.suffix))
    line = prefix.rfind("\n") + 1
    if len(prefix) - line < LONGEST_LINE:
        prefix, middle = prefix[:line], prefix[line:] + middle
    typed = middle.lstrip(" \t\n")
    blanks = middle[: len(middle) - len(typed)]
    return replace(hole, prefix=prefix + blanks, middle=typed, suffix=suffix)


def _middle(encoder: Encoder, hole: Gap, most: int) -> tuple[Gap, list[int]]:
    """What was typed; of a long run, the lines before the cursor's join the prefix."""
    if len(hole.middle) <= most * DENSE and len(middle := encoder.text(hole.middle)) <= most:
        return hole, middle
    line = hole.middle.rfind("\n") + 1
    prefix, typed = hole.prefix + hole.middle[:line], hole.middle[line:]
    if len(typed) > most * DENSE or len(middle := encoder.text(typed)) > most:
        prefix, typed, middle = prefix + typed, "", []
    return replace(hole, prefix=prefix, middle=typed), middle


def _head(
    encoder: Encoder, fim: FimFormat, hole: Gap, others: Sequence[InfillContext], most: int
) -> tuple[list[int], list[PromptPart]]:
    """The ids of other code, in the order given, and what became of each piece; what weighs least is left out first."""
    frame = head_of_files(fim, encoder.tokenizer)
    kept: dict[int, list[int]] = {}
    cut: dict[int, Cut] = {}
    room = most - len(frame.begin) - len(frame.end)
    for index in sorted(range(len(others)), key=lambda index: -others[index].weight):
        one = others[index]
        label = f"{one.name}\n" if fim.files else f"{_COMMENTS.get(hole.language, '//')} {one.name}\n"
        title = [*frame.before_each, *encoder.text(label.replace("\r", " "))]
        text = one.text.replace("\r\n", "\n").rstrip() + "\n"
        piece = first_of(encoder, text, room - len(title))
        if piece.end < len(text) and len(piece.ids) < STEP:
            continue  # the beginning of it would say too little
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


def _own_parts(hole: Gap, before: Cut, after: Cut, middle: int, word: str) -> list[PromptPart]:
    """The parts from the file itself, in its order."""
    start = hole.first_line + hole.prefix.count("\n", 0, before.start)
    anchor = hole.first_line + hole.prefix.count("\n")
    cursor = anchor + hole.middle.count("\n")
    text, rest = hole.prefix[before.start :], hole.suffix[: after.end]
    last = cursor + rest.removesuffix("\n").count("\n")
    return [
        PromptPart("prefix", hole.path, len(before.ids), text, cut=before.start > 0, lines=(start, anchor)),
        PromptPart("middle", hole.path, middle, hole.middle, lines=(anchor, cursor)),
        *([PromptPart("word", hole.path, 0, word, lines=(cursor, cursor))] if word else []),
        PromptPart("suffix", hole.path, len(after.ids), rest, cut=after.end < len(hole.suffix), lines=(cursor, last)),
    ]
