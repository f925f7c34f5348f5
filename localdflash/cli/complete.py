"""`localdflash complete FILE:LINE:COL`: the text to insert at a cursor, on stdout."""

import re
import sys
from pathlib import Path
from typing import Any

import click

from localdflash.cli.interrupt import Interrupt
from localdflash.cli.options import pair_options, sampling, sampling_options
from localdflash.cli.output import print_json
from localdflash.completion import complete, offset_of
from localdflash.errors import UsageError
from localdflash.text.sanitize import sanitize

LARGEST_FILE = 4_000_000  # bytes


@click.command()
@click.argument("place", metavar="FILE:LINE:COL")
@click.option("--max-tokens", type=click.IntRange(1), default=96, show_default=True, help="Longest insertion.")
@click.option("--line", "one_line", is_flag=True, help="Stop at the end of the line.")
@click.option("--trim", is_flag=True, help="Leave out lines far from the cursor when the file exceeds the context.")
@click.option("--no-draft", is_flag=True, help="Decode plainly: the same text, to compare.")
@click.option("--json", "as_json", is_flag=True, help="Print the insertion with its statistics as JSON.")
@pair_options
@sampling_options
def command(
    place: str,
    max_tokens: int,
    one_line: bool,
    trim: bool,
    no_draft: bool,
    as_json: bool,
    pair: str,
    backend: Any,
    threads: int,
    context: int,
    kv: str,
    drafter_bits: int,
    native_fp4: bool,
    **options: Any,
) -> int:
    """Complete the code at FILE:LINE:COL and print what to insert there.

    Lines and columns count from 1; columns are characters, and the one after the last is the end of the line.
    """
    params = sampling(**options)
    path, line, column = parse_place(place)
    text = read_text(path)
    offset = offset_of(text, line, column)
    from localdflash.cli.loading import opened
    from localdflash.loading import Options

    settings = Options(
        pair, backend, threads, context, not no_draft, drafter_bits=drafter_bits, native_fp4=native_fp4, kv=kv
    )
    with opened(settings) as loaded, Interrupt() as interrupt:
        answer = complete(
            loaded,
            text[:offset],
            text[offset:],
            max_tokens,
            params,
            trim=trim,
            one_line=one_line,
            cancelled=interrupt,
        )
        insertion = "".join(answer)
    if "\r\n" in text:
        insertion = insertion.replace("\n", "\r\n")
    if as_json:
        print_json({"insertion": insertion, "finish": answer.request.finish, **answer.request.stats.as_dict()})
    else:
        sys.stdout.write(sanitize(insertion) if sys.stdout.isatty() else insertion)
        sys.stdout.write("\n" if sys.stdout.isatty() else "")
    return 130 if interrupt.set else 0


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
