"""`localdflash stats`: count the suggestions that were shown, accepted and kept on this machine."""

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
    from localdflash.lsp.usage import EVENTS, read_usage, usage_file

    counts = read_usage(usage_file(), date.today() - timedelta(days - 1))
    rows = {key[:2]: [counts[*key[:2], event] for event in EVENTS] for key in sorted(counts)}
    if as_json:
        found = [
            {"language": language, "place": place} | dict(zip(EVENTS, row, strict=True))
            for (language, place), row in rows.items()
        ]
        print_json(found)
    elif not rows:
        off = load_config().completion.stats == "off"
        say("completion.stats is off: nothing is counted" if off else f"no suggestions in {days} days")
    else:
        rows["all", ""] = [sum(row[at] for row in rows.values()) for at in range(len(EVENTS))]
        header = ("LANGUAGE", "PLACE", *map(str.upper, EVENTS))
        print_table(
            header, ((*key, str(row[0]), _share(row[1], row[0]), _share(row[2], row[1])) for key, row in rows.items())
        )


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)" if whole else str(part)
