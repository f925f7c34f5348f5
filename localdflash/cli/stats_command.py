"""`localdflash stats`: suggestions made, accepted and kept on this machine."""

from datetime import date, timedelta

import click

from localdflash.cli.output import print_json, print_table, say
from localdflash.models.config import load_config


@click.command()
@click.option("--days", type=click.IntRange(1, 10_000), default=30, show_default=True, help="Count the last N days.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(days: int, as_json: bool) -> None:
    """Print how many suggestions editors showed, and how many were accepted and kept for 30 seconds.

    The counts are in a local file, hold no code, and are sent nowhere. Off: `config set completion.stats off`.
    """
    from localdflash.lsp.usage import read_usage, usage_file

    counts = read_usage(usage_file(), date.today() - timedelta(days - 1))
    places = sorted({key[:2] for key in counts})
    rows = [(*place, *(counts[*place, event] for event in ("suggested", "accepted", "kept"))) for place in places]
    if as_json:
        print_json(
            [dict(zip(("language", "place", "suggested", "accepted", "kept"), row, strict=True)) for row in rows]
        )
        return
    if not rows:
        off = load_config().completion.stats == "off"
        say("completion.stats is off: nothing is counted" if off else f"no suggestions in {days} days")
        return
    total = ("all", "", *(sum(row[at] for row in rows) for at in (2, 3, 4)))
    print_table(
        ("LANGUAGE", "PLACE", "SUGGESTED", "ACCEPTED", "KEPT"),
        ((row[0], row[1], str(row[2]), _share(row[3], row[2]), _share(row[4], row[3])) for row in (*rows, total)),
    )


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)" if whole else str(part)
