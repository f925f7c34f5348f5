"""What `localdflash bench --typing` prints."""

import sys
from typing import Any

from localdflash.cli.output import print_fields, print_table
from localdflash.text.sanitize import printable


def show(result: dict[str, Any]) -> None:
    """Print the tables of a replay."""
    for line in (*result["engine"]["messages"], result["overall"]["first_error"]):
        if line:
            print(printable(line), file=sys.stderr)
    rows = {**result["files"], "overall": result["overall"]}
    print_table(
        ("FILE", "KEYS", "PRESSED", "SAVED %", "ALL", "LINE", "WORD"),
        [
            (
                name,
                str(row["keys"]),
                str(row["pressed"]),
                f"{100 * row['keystrokes_saved']:.1f}",
                *(str(row["accepted"][part]) for part in ("all", "line", "word")),
            )
            for name, row in rows.items()
        ],
    )
    print()
    spreads = {name: row for name, row in result["ms"].items() if row}
    columns = ("p50", "p95", "max")
    cells = [(name.replace("_", " "), *(f"{row[at]:.1f}" for at in columns)) for name, row in spreads.items()]
    print_table(("MILLISECONDS", *(column.upper() for column in columns)), cells)
    print()
    shares = {"from_cache": "answers with text from cache", "wasted_tokens": "tokens generated but never shown"}
    overall = result["overall"]
    counts = ("requests", "answered", "with_text", "shown", "rejected", "grown", "stale", "flicker", "late", "errors")
    print_fields(
        [
            *((name.replace("_", " "), str(overall[name])) for name in counts),
            *((what, f"{100 * overall[name]:.0f} %") for name, what in shares.items() if overall[name] is not None),
            ("keys pressed a second", f"{overall['pressed_per_second']:.1f} for {result['seconds']:.0f} s"),
        ]
    )
