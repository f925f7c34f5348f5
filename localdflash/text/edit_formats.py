"""Formats of next-edit models: a prompt that shows a region of a file, and an answer that rewrites the region.

Sources: Zed's crates `edit_prediction` (`sweep_prompt.rs`) and `zeta_prompt` (zeta-2 is its
`V0211SeedCoder`, zeta-2.1 its `V0318SeedMultiRegions`), the package zed-zeta-bindings, and the model cards of
sweepai/sweep-next-edit-1.5B and zed-industries/zeta-2.1.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from string import Formatter
from typing import NamedTuple

from localdflash.text.fim_formats import ModelFacts, model_names

MIN_BLOCK_LINES, MAX_BLOCK_LINES, SEARCHED_LINES = 6, 16, 5  # blocks of zeta-2.1's numbered markers
_BLOCK_TAIL = re.compile(r"\s*(?:$|[])}]|(?:break|continue|return|throw|end);*\s*$)")  # a line that begins no block
_NUMBERED = re.compile(r"<\|marker_(\d{1,4})\|>")


class Template(str):
    """Trusted text of a prompt. What it spells may become special tokens; other text does not."""

    __slots__ = ()


class EditDiff(NamedTuple):
    """Edit of a file: its name, and the lines of a unified diff."""

    name: str
    diff: str

    def side(self, sign: str) -> str:
        """Return the lines before ("-") or after ("+") the edit, with the lines of context."""
        return "".join(f"{line[1:]}\n" for line in self.diff.split("\n") if line[:1] in (" ", sign))


@dataclass(frozen=True)
class EditRegion:
    """Lines that a model may rewrite, and text around them."""

    path: str
    before: str  # empty, or ends with a line feed
    text: str
    after: str  # empty, or begins with a line feed
    cursor: int  # offset in `text`
    original: str  # the text before the latest edit
    first_line: int = 0  # number of its first line in the document


@dataclass(frozen=True)
class EditFormat:
    """Format of one family. `render` fills in the templates."""

    name: str
    model_name: str  # pattern of the names of models with this format
    prompt: str
    edit: str  # a recent edit
    file: str = ""  # another file; "": no other files
    files: str = "{files}"  # all other files, if there are any
    edits: str = "{edits}"  # all recent edits, if there are any
    cursor: str = ""  # marker of the cursor
    answer_end: str = ""  # text that ends every answer
    stops: tuple[str, ...] = ()  # tokens that end an answer, as `Tokenizer.ends` do
    has_blocks: bool = False  # numbered markers divide the region, and the answer rewrites some of its blocks
    max_lines: int = 1 << 30  # lines of the region on either side of the cursor's line
    max_chars: int = 1050  # characters of the region besides the cursor's line

    @property
    def reserved(self) -> tuple[str, ...]:
        """Return the spellings of markers that neither the region nor the answer's text may contain."""
        return tuple(filter(None, (self.cursor, self.answer_end, "<|marker_" if self.has_blocks else "")))


_ZETA2 = "<[fim-suffix]>{after}\n<[fim-prefix]>{files}{edits}<filename>{path}\n{before}"
_ZETA2_PARTS = (
    *("--- a/{name}\n+++ b/{name}\n{diff}", "<filename>{name}\n{text}"),
    *("{files}\n", "<filename>edit_history\n{edits}\n", "<|user_cursor|>"),
)
FORMATS: dict[str, EditFormat] = {
    form.name: form
    for form in (
        EditFormat(
            "sweep",
            r"(?<![a-z])sweep[-_ ]next[-_ ]edit(?![-_ ]v\d)",
            "{files}{edits}<|file_sep|>original/{path}\n{original}<|file_sep|>current/{path}\n{lines}"
            "<|file_sep|>updated/{path}\n",
            "<|file_sep|>{name}.diff\noriginal:\n{old}updated:\n{new}",
            "<|file_sep|>{name}\n{text}",
            stops=("<|file_sep|>", "<|endoftext|>"),
            max_lines=10,
            max_chars=4000,
        ),
        EditFormat(
            "zeta-2.1",
            r"(?<![a-z])zeta[-_ ]?2[._-]1(?!\d)",
            _ZETA2 + "{region}\n<[fim-middle]>",
            *_ZETA2_PARTS,
            stops=("<[end▁of▁sentence]>",),
            has_blocks=True,
        ),
        EditFormat(
            "zeta-2",
            r"(?<![a-z])zeta[-_ ]?2(?![._-]1(?!\d)|\.?\d)",
            _ZETA2 + "<<<<<<< CURRENT\n{lines}=======\n<[fim-middle]>",
            *_ZETA2_PARTS,
            answer_end=">>>>>>> UPDATED",
        ),
    )
}


def detect_edit_format(model: ModelFacts, file_name: str) -> EditFormat | None:
    """Return the format that the names in a model's metadata, or else its file's name, suggest; None if none does."""
    names = (model_names(model), file_name.lower())
    found = (form for name in names for form in FORMATS.values() if re.search(form.model_name, name))
    return next(found, None)


def render(
    form: EditFormat, region: EditRegion, files: Sequence[tuple[str, str]], edits: Sequence[EditDiff]
) -> list[str]:
    """Return the prompt as code and `Template`s. `files`: name and text; `edits`: the latest is the last."""
    file_parts, edit_parts, marked = list[str](), list[str](), [*_mark(form, region)]
    for name, text in files:
        file_parts += _fill(form.file, name=[name], text=[_lines(text)])
    for edit in edits:
        sides = {"diff": [_lines(edit.diff)], "old": [edit.side("-")], "new": [edit.side("+")]}
        edit_parts += _fill(form.edit, name=[edit.name], **sides)
    values = {
        **{name: [getattr(region, name)] for name in ("path", "before", "after")},
        "original": [_lines(region.original)],
        "region": marked,
        "lines": [*marked, "" if region.text.endswith("\n") else "\n"],
        "files": [*_fill(form.files, files=file_parts)] if file_parts else [],
        "edits": [*_fill(form.edits, edits=edit_parts)] if edit_parts else [],
    }
    return [*_fill(form.prompt, **values)]


def parse(form: EditFormat, region: str, answer: str) -> str | None:
    """Return the region rewritten by an answer, of which `answer_end` was cut off; None if the answer is malformed.

    Line feeds at the end of a region without numbered markers stay as they are: models add and drop them.
    """
    text = answer.replace(form.cursor, "", 1) if form.cursor else answer
    if form.has_blocks:
        return _parse_blocks(region, text) if form.cursor not in text else None
    if not text.strip() or any(mark in text for mark in form.reserved):
        return None
    return text.rstrip("\n") + region[len(region.rstrip("\n")) :]


def _parse_blocks(region: str, text: str) -> str | None:
    head, *pairs = _NUMBERED.split(text)
    numbers, blocks, offsets = [int(number) for number in pairs[::2]], pairs[1::2], block_offsets(region)
    first, last = (numbers[0], numbers[-1]) if len(numbers) > 1 else (0, 0)
    is_ordered = numbers == [*range(first, last + 1)] or (numbers == [first, first] and not blocks[0])
    if head or not is_ordered or not 1 <= first <= last <= len(offsets) or blocks.pop().strip():
        return None
    return region[: offsets[first - 1]] + "".join(blocks) + region[offsets[last - 1] :]


def block_offsets(text: str) -> list[int]:
    """Return the offsets of zeta-2.1's numbered markers: after blank lines if possible, and not before a closer."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    blocks, at = [0], 0
    while at < len(lines):
        size = at - blocks[-1]
        near = range(at, min(at + SEARCHED_LINES, len(lines)))
        start = next((line for line in near if not _BLOCK_TAIL.match(lines[line])), at)
        follows_blank = at > 0 and lines[at].strip() and not lines[at - 1].strip()
        is_break = size >= MIN_BLOCK_LINES and follows_blank and len(lines) - start >= MIN_BLOCK_LINES
        if is_break or size >= MAX_BLOCK_LINES:
            blocks.append(start)
            at = start
        at += 1
    starts = [0, *accumulate(map(len, lines))]
    offsets = [starts[line] for line in blocks]
    return offsets if offsets[-1] == len(text) > 0 else [*offsets, len(text)]


def _mark(form: EditFormat, region: EditRegion) -> Iterator[str]:
    """Yield the region with the cursor's marker and with numbered markers, if the format has them."""
    offsets = block_offsets(region.text) if form.has_blocks else []
    marks = [(offset, Template(f"<|marker_{number}|>")) for number, offset in enumerate(offsets, 1)]
    before_cursor = max(bisect_left(offsets, region.cursor), 1)  # the cursor belongs to the earlier block
    marks.insert(before_cursor, (region.cursor, Template(form.cursor)))
    at = 0
    for offset, mark in marks:
        yield from (region.text[at:offset], mark)
        at = offset
    yield region.text[at:]


def _fill(template: str, **values: Sequence[str]) -> Iterator[str]:
    for literal, name, _, _ in Formatter().parse(template):
        yield Template(literal)
        yield from values[name] if name else ()


def _lines(text: str) -> str:
    """Return the text with a line feed at its end, if it is not empty."""
    return text if not text or text.endswith("\n") else f"{text}\n"
