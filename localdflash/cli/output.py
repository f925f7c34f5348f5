"""Print tables, fields and JSON to stdout, messages and progress to stderr. Control characters are escaped."""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress

from localdflash.text.sanitize import printable

DAEMON_RESTARTED = "The daemon stopped and was restarted."


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows in aligned columns under a header."""
    lines = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print a line `name  value` for each field; the values are aligned."""
    lines = list(fields)
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name.ljust(width)}  {printable(value)}")


def print_json(value: object) -> None:
    """Print one JSON document, indented and in ASCII."""
    print(json.dumps(value, indent=2))


def print_json_line(value: object) -> None:
    """Print JSON on one line in ASCII, and flush it."""
    print(json.dumps(value), flush=True)


def say(line: str) -> None:
    """Print a line for the user on stderr; ignore a closed stderr, or a full disk."""
    with suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)


class ProgressBar:
    """Progress bar on stderr, shown after `delay` seconds and removed at the end. Call it with done and total."""

    def __init__(self, description: str, unit: str = "B", delay: float = 0.0) -> None:
        from tqdm import tqdm

        self._bar = bar = tqdm(
            desc=description, unit=unit, unit_scale=unit == "B", leave=False, delay=delay, file=sys.stderr
        )
        self.close = bar.close

    def __call__(self, done: int, total: int) -> None:
        """Update the bar."""
        bar = self._bar
        if bar.total is None:
            bar.total, bar.initial = total, done
            bar.n = bar.last_print_n = done
        bar.update(done - bar.n)
        if done >= total:
            bar.close()
