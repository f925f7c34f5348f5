"""Formats of next-edit models: a prompt that shows a region of a file, and an answer that rewrites the region.

Sources: Zed's crates `edit_prediction` (`sweep_prompt.rs`, `zeta1.rs`) and `zeta_prompt` (zeta-2 is its
`V0211SeedCoder`, zeta-2.1 its `V0318SeedMultiRegions`), the package zed-zeta-bindings, and the model cards of
sweepai/sweep-next-edit-1.5B and zed-industries/zeta-2.1.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from string import Formatter
from typing import TYPE_CHECKING

from localdflash.base.errors import ModelError, did_you_mean
from localdflash.text.fim_formats import ModelFacts, model_names

if TYPE_CHECKING:
    from localdflash.text.tokenizer import Tokenizer

MIN_BLOCK_LINES, MAX_BLOCK_LINES, SEARCHED_LINES = 6, 16, 5  # blocks of zeta-2.1's numbered markers
_BLOCK_TAIL = re.compile(r"\s*(?:$|[])}]|(?:break|continue|return|throw|end);*\s*$)")  # a line that begins no block
_NUMBERED = re.compile(r"<\|marker_(\d{1,4})\|>")


class Template(str):
    """Trusted text of a prompt. What it spells may become special tokens; other text does not."""

    __slots__ = ()


@dataclass(frozen=True)
class EditDiff:
    """Edit of a file: its name, and the lines of a unified diff."""

    name: str
    diff: str

    def side(self, sign: str) -> str:
        """Return the lines before ("-") or after ("+") the edit, with the lines of context."""
        return "".join(f"{line[1:]}\n" for line in self.diff.split("\n") if line[:1] in (" ", sign))


@dataclass(frozen=True)
class EditRegion:
    """Lines that a model may rewrite, and text around them. `cursor`: offset in `text`.

    `before` ends with a line feed and `after` begins with one, if they are not empty.
    """

    path: str
    before: str
    text: str
    after: str
    cursor: int
    original: str  # the text before the latest edit


@dataclass(frozen=True)
class EditFormat:
    """Format of one family. `render` fills in the templates."""

    name: str
    model_name: str  # pattern of the names of models with this format
    prompt: str
    edit: str  # template of a recent edit
    file: str = ""  # template of another file; "": other files are left out
    files_end: str = ""  # text after other files, if there are any
    edits_begin: str = ""  # text before recent edits, if there are any, between them and after them
    edits_between: str = ""
    edits_end: str = ""
    cursor: str = ""  # marker of the cursor
    answer_end: str = ""  # text that ends every answer
    stops: tuple[str, ...] = ()  # tokens that end an answer, as `Tokenizer.ends` do
    has_blocks: bool = False  # numbered markers divide the region, and the answer rewrites some of its blocks
    max_lines: int = 1 << 30  # lines of the region on either side of the cursor's line
    max_chars: int = 1050  # characters of the region besides the cursor's line
    context_chars: int = 450  # characters around the region
    max_edits: int = 6  # recent edits

    @property
    def reserved(self) -> tuple[str, ...]:
        """Return the spellings of markers that neither the region nor the answer's text may contain."""
        return tuple(filter(None, (self.cursor, self.answer_end, "<|marker_" if self.has_blocks else "")))


_ZETA2_CURSOR = "<|user_cursor|>"
_ZETA2 = "<[fim-suffix]>{after}\n<[fim-prefix]>{files}{edits}<filename>{path}\n{before}"
_ZETA2_FILE, _ZETA2_EDIT = "<filename>{name}\n{text}", "--- a/{name}\n+++ b/{name}\n{diff}"
_HISTORY = "<filename>edit_history\n"
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
            max_edits=3,
        ),
        EditFormat(
            "zeta-2.1",
            r"(?<![a-z])zeta[-_ ]?2[._-]1(?!\d)",
            _ZETA2 + "{region}\n<[fim-middle]>",
            *(_ZETA2_EDIT, _ZETA2_FILE, "\n", _HISTORY, "", "\n", _ZETA2_CURSOR),
            stops=("<[end▁of▁sentence]>",),
            has_blocks=True,
        ),
        EditFormat(
            "zeta-2",
            r"(?<![a-z])zeta[-_ ]?2(?![._-]1(?!\d)|\.?\d)",
            _ZETA2 + "<<<<<<< CURRENT\n{lines}=======\n<[fim-middle]>",
            *(_ZETA2_EDIT, _ZETA2_FILE, "\n", _HISTORY, "", "\n", _ZETA2_CURSOR),
            answer_end=">>>>>>> UPDATED",
        ),
        EditFormat(
            "zeta",
            r"(?<![a-z])zeta(?![a-z]|[-_ ]?\d)",
            "### Instruction:\nYou are a code completion assistant and your task is to analyze user edits and then "
            "rewrite an excerpt that the user provides, suggesting the appropriate edits within the excerpt, taking "
            "into account the cursor location.\n\n### User Edits:\n\n{edits}\n\n### User Excerpt:\n\n```{path}\n"
            "{file_start}{before}<|editable_region_start|>\n{region}\n<|editable_region_end|>{after}\n```\n\n"
            "### Response:\n<|editable_region_start|>\n",  # the model's answers begin with the last line
            "User edited {name}:\n```diff\n{diff}```",
            edits_between="\n\n",
            cursor="<|user_cursor_is_here|>",
            answer_end="<|editable_region_end|>",
        ),
    )
}


def edit_format_of(name: str) -> EditFormat:
    """Return the format with this name from a registry entry; ModelError if there is none."""
    if name in FORMATS:
        return FORMATS[name]
    hint = did_you_mean(name, FORMATS) or f" (expected one of {', '.join(FORMATS)})"
    raise ModelError(f"next_edit = {name!r}: unknown format{hint}")


def detect_edit_format(model: ModelFacts, file_name: str) -> EditFormat | None:
    """Return the format that the names in a model's metadata, or else its file's name, suggest; None if none does."""
    for names in (model_names(model), file_name.lower()):
        if form := next((form for form in FORMATS.values() if re.search(form.model_name, names)), None):
            return form
    return None


def render(
    form: EditFormat, region: EditRegion, files: Sequence[tuple[str, str]], edits: Sequence[EditDiff]
) -> list[str]:
    """Return the prompt as code and `Template`s. `files`: name and text; `edits`: the latest is the last."""
    values: Mapping[str, Sequence[str]] = {
        "path": [region.path],
        "before": [region.before],
        "after": [region.after],
        "original": [_lines(region.original)],
        "region": [*_mark(form, region)],
        "lines": [*_mark(form, region), "" if region.text.endswith("\n") else "\n"],
        "file_start": [] if region.before else [Template("<|start_of_file|>\n")],
        "files": [part for name, text in files for part in _fill(form.file, name=[name], text=[_lines(text)])],
        "edits": [],
    }
    shown: list[str] = []
    for edit in edits:
        sides = {"diff": [_lines(edit.diff)], "old": [edit.side("-")], "new": [edit.side("+")]}
        shown += [
            Template(form.edits_between if shown else form.edits_begin),
            *_fill(form.edit, name=[edit.name], **sides),
        ]
    values = {**values, "edits": [*shown, Template(form.edits_end if shown else "")]}
    values["files"] = [*values["files"], Template(form.files_end if values["files"] else "")]
    return [*_fill(form.prompt, **values)]


def encode_prompt(tokenizer: "Tokenizer", parts: Sequence[str]) -> list[int]:
    """Return the ids of a prompt with BOS, if the vocabulary adds it."""
    from localdflash.text.chat_template import encode_parts

    split = (tokenizer.split_markers(part) if isinstance(part, Template) else [part] for part in parts)
    bos = tokenizer.bos()
    return [*([] if bos is None else [bos]), *encode_parts(tokenizer, (part for some in split for part in some))]


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
    first, *pairs = _NUMBERED.split(text)
    numbers, blocks = [int(number) for number in pairs[::2]], pairs[1::2]
    offsets = block_offsets(region)
    if first or len(numbers) < 2 or not 1 <= numbers[0] <= numbers[-1] <= len(offsets) or blocks.pop().strip():
        return None
    if numbers == [numbers[0]] * 2 and not blocks[0]:
        return region
    if numbers != [*range(numbers[0], numbers[-1] + 1)]:
        return None
    return region[: offsets[numbers[0] - 1]] + "".join(blocks) + region[offsets[numbers[-1] - 1] :]


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
    offsets = block_offsets(region.text) if form.has_blocks else [0, len(region.text)]
    unmarked = region.cursor if form.cursor else -1  # offset of the cursor until its marker is written
    for number, (start, end) in enumerate(pairwise(offsets), 1):
        if form.has_blocks:
            yield Template(f"<|marker_{number}|>")
        if 0 <= unmarked <= end:
            yield from (region.text[start:unmarked], Template(form.cursor), region.text[unmarked:end])
            unmarked = -1
        else:
            yield region.text[start:end]
    if form.has_blocks:
        yield Template(f"<|marker_{len(offsets)}|>")


def _fill(template: str, **values: Sequence[str]) -> Iterator[str]:
    for literal, name, _, _ in Formatter().parse(template):
        yield Template(literal)
        yield from values[name] if name else ()


def _lines(text: str) -> str:
    """Return the text with a line feed at its end, if it is not empty."""
    return text if not text or text.endswith("\n") else f"{text}\n"
