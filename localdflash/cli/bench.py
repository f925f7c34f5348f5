"""`localdflash bench`: speed, acceptance and identity with plain decoding, written as one JSON object."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from localdflash.cli.options import pair_options
from localdflash.cli.output import print_table


@click.command()
@click.option("--limit", type=click.IntRange(1), default=None, help="Prompts of each category; all without it.")
@click.option(
    "--repeats", type=click.IntRange(1, 20), default=2, show_default=True, help="Runs of each prompt and way."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here.")
@pair_options
def command(
    limit: int | None,
    repeats: int,
    json_file: Path | None,
    pair: str,
    backend: Any,
    threads: int,
    context: int,
    kv: str,
    drafter_bits: int,
    native_fp4: bool,
) -> int:
    """Run the prompt set with drafting and without, in turn. Exit code 1 where an output differs."""
    from localdflash.bench.run import run
    from localdflash.loading import Options

    if json_file:  # before the minutes that it takes, not after them
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.open("a").close()
    result = run(
        Options(pair, backend, threads, context, drafter_bits=drafter_bits, native_fp4=native_fp4, kv=kv),
        limit,
        repeats,
        _progress,
    )
    print(file=sys.stderr)
    if json_file:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    rows = {**result["categories"], "overall": result["overall"]}
    print_table(
        ("CATEGORY", "PLAIN TOK/S", "TOK/S", "SPEED-UP", "TAU", "IDENTICAL", "FIRST TOKEN MS"),
        [
            (
                name,
                f"{row['ar_tok_s']:.0f}",
                f"{row['tok_s']:.0f}",
                f"{row['speedup']:.2f}",
                f"{row['tau']:.2f}",
                row["identical"],
                f"{row['ttft_ms']['p50']:.1f}",
            )
            for name, row in rows.items()
        ],
    )
    same, total = rows["overall"]["identical"].split("/")
    return 0 if same == total else 1


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line:60}", end="", file=sys.stderr, flush=True)
