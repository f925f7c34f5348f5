"""A completion at a cursor: takes a document and an offset, returns the text to insert."""

from collections.abc import Callable, Sequence

from localdflash.answers.answer import Answer, Prepared
from localdflash.engine.generate import Request
from localdflash.engine.pair import Cancelled, never
from localdflash.engine.sampling_params import SamplingParams
from localdflash.errors import ContextOverflow, UsageError
from localdflash.loading.load import LoadedPair
from localdflash.text.fim import SourceFile, build, stop_ids
from localdflash.text.tokenizer import Tokenizer

SUFFIX_SHARE = 0.25  # of the room that a trimmed prompt gives to the text after the cursor
MOST_DOCUMENT_TOKENS = 32_768  # of other files, to copy drafts from


def offset_of(text: str, line: int, column: int) -> int:
    """The offset of line and column (both from 1, columns in characters) in the text; UsageError names what is
    outside.
    """
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
    """A completion between prefix and suffix, not started yet; see `prepare`."""
    prepared = prepare(loaded, prefix, suffix, max_tokens, params, trim=trim, one_line=one_line, cancelled=cancelled)
    return Answer(loaded, prepared)


def prepare(
    loaded: LoadedPair,
    prefix: str,
    suffix: str,
    max_tokens: int,
    params: SamplingParams,
    *,
    files: Sequence[SourceFile] = (),
    trim: bool = False,
    one_line: bool = False,
    cancelled: Cancelled = never,
) -> Prepared:
    """The request of a completion between prefix and suffix. Its lines end with a line feed alone, as in training.

    `trim` leaves out whole lines far from the cursor if the prompt does not fit. The last of `files` come first in the
    prompt if the format has a place for them and there is room; drafts are copied from any of them.
    """
    form, tokenizer = loaded.fim_format(), loaded.tokenizer
    prefix, suffix = prefix.replace("\r\n", "\n"), suffix.replace("\r\n", "\n")

    def prompt(before: str, after: str) -> list[int]:
        return build(form, tokenizer, before, after)

    ids = prompt(prefix, suffix)
    room = loaded.context - max_tokens
    truncated = trim and 0 < room < len(ids)
    if truncated:
        prefix, suffix = _trimmed(prompt, prefix, suffix, room)
        ids = prompt(prefix, suffix)
    elif form.files and files:
        fitting = _most(len(files), lambda n: len(build(form, tokenizer, prefix, suffix, _last(files, n))) <= room)
        ids = build(form, tokenizer, prefix, suffix, _last(files, fitting))
    request = Request(ids, max_tokens, params, stop_ids(form, tokenizer), cancelled, documents=_ids(tokenizer, files))
    stops = (*form.stop_strings, "\n") if one_line else form.stop_strings
    return Prepared(request, stops, truncated=truncated)


def prepare_text(loaded: LoadedPair, prompt: str | Sequence[int], max_tokens: int, params: SamplingParams) -> Prepared:
    """The request that continues a prompt as it stands; text that spells a marker becomes one.

    UsageError if there is nothing to continue, or an id is not a token of the model.
    """
    tokenizer = loaded.tokenizer
    if isinstance(prompt, str):
        parts = tokenizer.split_markers(prompt)
        ids = [token for part in parts for token in (tokenizer.encode(part) if isinstance(part, str) else [part])]
        bos = tokenizer.bos()
        if bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
    else:
        ids = list(prompt)
        if strange := [token for token in ids if not 0 <= token < tokenizer.vocab_size]:
            raise UsageError(f"prompt: {strange[0]} is no token of this model, which has {tokenizer.vocab_size}")
    if not ids:
        raise UsageError("prompt: it is empty, there is nothing to go on from")
    return Prepared(Request(ids, max_tokens, params, tokenizer.ends))


def _last(files: Sequence[SourceFile], count: int) -> Sequence[SourceFile]:
    return files[len(files) - count :]


def _ids(tokenizer: Tokenizer, files: Sequence[SourceFile]) -> list[list[int]]:
    """The ids of the files to copy from, the newest first, up to the limit."""
    documents: list[list[int]] = []
    left = MOST_DOCUMENT_TOKENS
    for file in reversed(files):
        ids = tokenizer.encode(file.text[: left * 8])[:left]  # a token has seldom more than 8 characters
        if not ids:
            continue
        documents.insert(0, ids)
        left -= len(ids)
    return documents


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
