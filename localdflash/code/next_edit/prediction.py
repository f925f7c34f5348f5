"""Next edits by a model: the region around the cursor, the prompt, and the changes that an answer makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from localdflash.code.context.context import ContextPiece
from localdflash.code.next_edit.line_changes import LineChange
from localdflash.engine.generate import Request
from localdflash.text.chat_template import encode_parts
from localdflash.text.edit_formats import EditDiff, EditFormat, EditRegion, Template, parse, render
from localdflash.text.tokenizer import Tokenizer

MAX_PROMPT_CHARS = 11_000  # about the 4096 tokens that Zed's models were trained with
MAX_REGION_CHARS = 5_000  # larger because of a long line at the cursor: no prediction
CONTEXT_CHARS = 450  # characters around the region
MAX_EDIT_CHARS, MAX_EDITS = 2_000, 6  # recent edits in the prompt
SPARE_TOKENS = 200  # tokens of an answer beyond those of the region


@dataclass(frozen=True)
class EditPrompt:
    """Prompt of a prediction, with its format and region."""

    form: EditFormat
    region: EditRegion
    request: Request

    def changes(self, answer: str) -> list[LineChange] | None:
        """Return the changes that an answer makes to the request's text; None if the answer is malformed."""
        updated = parse(self.form, self.region.text, answer)
        if updated is None:
            return None
        old, new, first = self.region.text.split("\n"), updated.split("\n"), self.region.first_line
        return [
            LineChange(first + start, first + end, tuple(new[new_start:new_end]))
            for kind, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
            if kind != "equal"
        ]


def plan_prediction(
    form: EditFormat, tokenizer: Tokenizer, path: str, before: str, after: str, pieces: Sequence[ContextPiece]
) -> EditPrompt | None:
    """Return the prompt for a cursor between two texts; None for a long line or a line that spells a marker.

    `pieces`: code from elsewhere, and recent edits as diffs, the latest last.
    """
    edits = [EditDiff(piece.name, piece.text) for piece in pieces if piece.kind == "edit"]
    region = _region(form, path, before, after, edits)
    if len(region.text) > MAX_REGION_CHARS or any(mark in region.text for mark in form.reserved):
        return None
    room = MAX_PROMPT_CHARS - sum(map(len, (region.before, region.text, region.after, region.original)))
    shown, files = list[EditDiff](), list[tuple[str, str]]()
    for edit in reversed(edits[-MAX_EDITS:]):
        if len(edit.diff) <= min(room, MAX_EDIT_CHARS):
            shown.insert(0, edit)
            room -= len(edit.diff)
    for piece in sorted(pieces, key=lambda piece: -piece.weight):
        if piece.kind != "edit" and len(piece.text) <= room:
            files.insert(0, (piece.name, piece.text))
            room -= len(piece.text)
    split = (
        tokenizer.split_markers(part) if isinstance(part, Template) else [part]
        for part in render(form, region, files, shown)
    )  # fmt: skip
    bos = tokenizer.bos()
    ids = [*([] if bos is None else [bos]), *encode_parts(tokenizer, (part for parts in split for part in parts))]
    stops = filter(tokenizer.has_special, form.stops)
    max_tokens = len(tokenizer.encode(region.text)) + SPARE_TOKENS
    request = Request(ids, max_tokens, ends=tokenizer.ends.union(map(tokenizer.special, stops)))
    return EditPrompt(form, region, request)


def _region(form: EditFormat, path: str, before: str, after: str, edits: Sequence[EditDiff]) -> EditRegion:
    """Return the region around a cursor."""
    lines, at = (before + after).split("\n"), before.count("\n")
    start, end = _grow(lines, at, at + 1, form.max_lines, form.max_chars)
    first, last = _grow(lines, start, end, len(lines), CONTEXT_CHARS)
    text = "\n".join(lines[start:end])
    cursor = sum(len(line) + 1 for line in lines[start:at]) + len(before) - before.rfind("\n") - 1
    original = _before_edit(text, cursor, edits[-1]) if edits and edits[-1].name == path else text
    above, below = "".join(f"{line}\n" for line in lines[first:start]), "".join(f"\n{line}" for line in lines[end:last])
    return EditRegion(path, above, text, below, cursor, original, start)


def _grow(lines: Sequence[str], start: int, end: int, max_lines: int, room: int) -> tuple[int, int]:
    """Return a range of lines extended on both sides, by at most `max_lines` each and `room` characters together."""
    for _ in range(min(max_lines, len(lines))):
        if start and len(lines[start - 1]) < room:
            start -= 1
            room -= len(lines[start]) + 1
        if end < len(lines) and len(lines[end]) < room:
            room -= len(lines[end]) + 1
            end += 1
    return start, end


def _before_edit(text: str, cursor: int, edit: EditDiff) -> str:
    """Return the region as it was before an edit; unchanged if the edit with its context is not in the region."""
    old, new, whole = edit.side("-"), edit.side("+"), f"{text}\n"
    at = f"\n{whole}".rfind(f"\n{new}", 0, cursor + len(new) + 1) if new else -1
    return (whole[:at] + old + whole[at + len(new) :])[:-1] if at >= 0 else text
