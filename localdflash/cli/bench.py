"""`localdflash bench`: speed, acceptance and identity with plain decoding, written as one JSON object."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from localdflash.cli.options import pair_options
from localdflash.cli.output import print_table
from localdflash.errors import UsageError

COMPLETIONS = 200


@click.command()
@click.option("--limit", type=click.IntRange(1), default=None, help="Prompts of each category; all without it.")
@click.option(
    "--repeats", type=click.IntRange(1, 20), default=2, show_default=True, help="Runs of each prompt and way."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here.")
@click.option("--server", "of_server", is_flag=True, help="Measure the shared engine as its clients feel it instead.")
@pair_options
@click.pass_context
def command(
    ctx: click.Context, /, limit: int | None, repeats: int, json_file: Path | None, of_server: bool, **options: Any
) -> int:
    """Run the prompt set with drafting and without, in turn. Exit code 1 where an output differs.

    With --server: completions alone and beside a streaming chat, cancellations, round trips; --limit completions each.
    """
    if json_file:  # before the minutes that it takes, not after them
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.open("a").close()
    if of_server:
        return _bench_server(ctx, limit or COMPLETIONS, json_file, options)
    from localdflash.bench.run import run
    from localdflash.loading import Options

    result = run(Options(**options), limit, repeats, _progress)
    print(file=sys.stderr)
    _write(json_file, result)
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


def _bench_server(ctx: click.Context, completions: int, json_file: Path | None, options: dict[str, Any]) -> int:
    from localdflash.bench.server import run
    from localdflash.cli.remote import server

    with server(ctx, options) as shared:
        if not shared.ours:
            raise UsageError("bench --server measures localdflash's own engine: take [server] url out of the settings")
        result = run(shared.client, completions)
    _write(json_file, result)
    rows = [
        (name, *(f"{times[at]:.1f}" for times in (arm["total_ms"], arm["first_token_ms"]) for at in ("p50", "p95")))
        for name, arm in (("alone", result["alone"]), ("beside a chat", result["beside_a_chat"]))
    ]
    print_table(("COMPLETIONS", "P50 MS", "P95 MS", "FIRST TOKEN P50", "P95"), rows)
    print(f"p95 beside a chat over alone: {result['p95_beside_over_alone']:.2f}")
    print(f"round trip without generation: p95 {result['round_trip_ms']['p95']:.2f} ms")
    return 0


def _write(json_file: Path | None, result: dict[str, Any]) -> None:
    if json_file:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line:60}", end="", file=sys.stderr, flush=True)
