"""`localdflash complete FILE:LINE:COL`: the text to insert at a cursor, on stdout."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from localdflash.cli.interrupt import Interrupt
from localdflash.cli.options import daemon_option, pair_options, sampling_options, take_sampling
from localdflash.cli.output import print_json
from localdflash.completion import offset_of
from localdflash.engine.sampling_params import SamplingParams
from localdflash.errors import UsageError
from localdflash.text.sanitize import sanitize

LARGEST_FILE = 4_000_000  # bytes


@click.command()
@click.argument("place", metavar="FILE:LINE:COL")
@click.option("--max-tokens", type=click.IntRange(1), default=96, show_default=True, help="Longest insertion.")
@click.option("--line", "one_line", is_flag=True, help="Stop at the end of the line.")
@click.option("--trim", is_flag=True, help="Leave out lines far from the cursor when the file exceeds the context.")
@click.option("--no-draft", is_flag=True, help="Decode plainly, without the shared engine: the same text, to compare.")
@click.option("--json", "as_json", is_flag=True, help="Print the insertion with its statistics as JSON.")
@daemon_option
@pair_options
@sampling_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    place: str,
    max_tokens: int,
    one_line: bool,
    trim: bool,
    no_draft: bool,
    as_json: bool,
    no_daemon: bool,
    **options: Any,
) -> int:
    """Complete the code at FILE:LINE:COL and print what to insert there.

    Lines and columns count from 1; columns are characters, and the one after the last is the end of the line.
    """
    params = take_sampling(options)
    path, line, column = parse_place(place)
    text = read_text(path)
    offset = offset_of(text, line, column)
    hole = Hole(text[:offset], text[offset:], max_tokens, params, trim, one_line)
    interrupt = Interrupt()
    if no_daemon or no_draft:
        insertion, finish, numbers = _fill_here(hole, options, no_draft, interrupt)
    else:
        insertion, finish, numbers = _fill_by_server(hole, ctx, options, interrupt)
    if "\r\n" in text:
        insertion = insertion.replace("\n", "\r\n")
    if as_json:
        print_json({"insertion": insertion, "finish": finish, **numbers})
    else:
        sys.stdout.write(sanitize(insertion) if sys.stdout.isatty() else insertion)
        sys.stdout.write("\n" if sys.stdout.isatty() else "")
    return 130 if interrupt.set else 0


@dataclass(frozen=True)
class Hole:
    """Where text is missing, and what may be put there."""

    prefix: str
    suffix: str
    max_tokens: int
    params: SamplingParams
    trim: bool
    one_line: bool


class Filled(NamedTuple):
    """What was put there: the text, why it ended, its statistics."""

    text: str
    finish: str
    numbers: dict[str, Any]


def _fill_here(hole: Hole, options: dict[str, Any], no_draft: bool, interrupt: Interrupt) -> Filled:
    """By a pair that this process loads."""
    from localdflash.cli.loading import opened
    from localdflash.completion import complete
    from localdflash.loading import Options

    with opened(Options(**options, draft=not no_draft)) as loaded, interrupt:
        answer = complete(
            loaded,
            hole.prefix,
            hole.suffix,
            hole.max_tokens,
            hole.params,
            trim=hole.trim,
            one_line=hole.one_line,
            cancelled=interrupt,
        )
        return Filled("".join(answer), answer.request.finish, answer.request.stats.as_dict())


def _fill_by_server(hole: Hole, ctx: click.Context, options: dict[str, Any], interrupt: Interrupt) -> Filled:
    """By the shared engine, or the server that the settings name."""
    from localdflash.cli.remote import completion, sampling_fields, server

    with server(ctx, options) as found, interrupt:
        fields = sampling_fields(hole.params, hole.max_tokens)
        answer = completion(found, hole.prefix, hole.suffix, fields, interrupt, trim=hole.trim, one_line=hole.one_line)
        return Filled("".join(answer), answer.finish, answer.numbers)


def parse_place(place: str) -> tuple[Path, int, int]:
    """FILE:LINE:COL; the file's name may hold colons."""
    parts = place.rsplit(":", 2)
    if len(parts) != 3 or not parts[0] or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts[1:]):
        raise UsageError(f"{place!r} is not FILE:LINE:COL, for example app.py:12:9")
    return Path(parts[0]), int(parts[1]), int(parts[2])


def read_text(path: Path) -> str:
    """A source file as text; UsageError where it is no file, too large, binary or not UTF-8."""
    try:
        if not path.is_file():
            raise UsageError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{path}: larger than {LARGEST_FILE // 1_000_000} MB: not a source file to complete")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror}") from None
    if b"\0" in data:
        raise UsageError(f"{path}: a binary file, not text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}: convert it first") from None
