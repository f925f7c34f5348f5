"""A completion at a cursor: a document and an offset in, the text to insert out."""

from collections.abc import Callable

from localdflash.answer import Answer
from localdflash.engine.generate import Request
from localdflash.engine.pair import Cancelled, never
from localdflash.engine.sampling import SamplingParams
from localdflash.errors import ContextOverflow, UsageError
from localdflash.loading import LoadedPair
from localdflash.text.fim import build, stop_ids

SUFFIX_SHARE = 0.25  # of the room that a trimmed prompt gives to the text after the cursor


def offset_of(text: str, line: int, column: int) -> int:
    """Where line and column (both from 1, columns in characters) lie in the text; UsageError names what is outside."""
    lines = text.split("\n")  # as editors do; str.splitlines also splits at form feeds and the like
    if not 1 <= line <= len(lines):
        raise UsageError(f"line {line} is outside the file, whose last line is {len(lines)}")
    width = len(lines[line - 1])
    if line < len(lines) and lines[line - 1].endswith("\r"):
        width -= 1
    if not 1 <= column <= width + 1:
        raise UsageError(f"column {column} is outside line {line}, whose last column is {width + 1}")
    return sum(len(before) + 1 for before in lines[: line - 1]) + column - 1


def complete(
    loaded: LoadedPair,
    prefix: str,
    suffix: str,
    max_tokens: int,
    params: SamplingParams,
    *,
    trim: bool = False,
    one_line: bool = False,
    cancelled: Cancelled = never,
) -> Answer:
    """The completion between prefix and suffix, not started yet. Its lines end with a line feed alone, as in training.

    A prompt that does not fit is ContextOverflow; with `trim` whole lines far from the cursor are left out instead.
    """
    form = loaded.fim_format()
    prefix, suffix = prefix.replace("\r\n", "\n"), suffix.replace("\r\n", "\n")

    def prompt(before: str, after: str) -> list[int]:
        return build(form, loaded.tokenizer, before, after)

    ids = prompt(prefix, suffix)
    room = loaded.context - max_tokens
    if trim and 0 < room < len(ids):
        prefix, suffix = _trimmed(prompt, prefix, suffix, room)
        ids = prompt(prefix, suffix)
    ends = stop_ids(form, loaded.tokenizer)
    request = Request(ids, max_tokens, params, ends, cancelled)
    return Answer(loaded, request, (*form.stop_strings, "\n") if one_line else form.stop_strings)


def _trimmed(prompt: Callable[[str, str], list[int]], prefix: str, suffix: str, room: int) -> tuple[str, str]:
    """As many whole lines around the cursor as fit into `room` tokens."""
    before, after = prefix.splitlines(keepends=True), suffix.splitlines(keepends=True)
    kept_after = _most(len(after), lambda n: len(prompt("", "".join(after[:n]))) <= room * SUFFIX_SHARE)
    short = "".join(after[:kept_after])
    kept = _most(len(before), lambda n: len(prompt("".join(before[len(before) - n :]), short)) <= room)
    if kept == 0 and before:
        raise ContextOverflow(f"the line before the cursor alone does not fit into {room} tokens")
    return "".join(before[len(before) - kept :]), short


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest n up to `limit` that fits, by bisection."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
