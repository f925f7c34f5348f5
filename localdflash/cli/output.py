"""What commands print: aligned tables, fields and JSON, on stdout. Text from files and paths is made harmless first."""

import json
from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    """Make one line without control characters: what a terminal would act on is shown escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows in aligned columns under a header."""
    lines = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print `name  value` lines, values aligned."""
    lines = list(fields)
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name.ljust(width)}  {printable(value)}")


def print_json(value: object) -> None:
    """Print one JSON document, ASCII, indented."""
    print(json.dumps(value, indent=2))
