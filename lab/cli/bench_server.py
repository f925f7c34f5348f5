"""`localdflash bench server`: latency of the daemon as its clients see it."""

from pathlib import Path
from typing import Any

import click

from localdflash.cli.options import chat_pair_options
from localdflash.cli.output import print_table
from localdflash.lab.cli.bench_output import (
    BenchProgress,
    check_outputs,
    connect_own_engine,
    json_option,
    limit_option,
    save_result,
)

DEFAULT_COMPLETIONS = 200


@click.command()
@limit_option(
    f"Completions of each kind, {DEFAULT_COMPLETIONS} by default; fewer than that also shorten the other parts."
)
@json_option
@chat_pair_options
@click.pass_context
def command(ctx: click.Context, /, limit: int | None, json_file: Path | None, **options: Any) -> int:
    """Measure completions alone and next to a streaming chat, cancellations, and round trips of the daemon."""
    from localdflash.lab.bench.daemon_latency import run

    check_outputs(json_file)
    client = connect_own_engine(ctx, options, None if options["pair"] else "chat")  # a given pair serves both roles
    with save_result(json_file, _show) as result, BenchProgress() as progress:
        result.update(run(client, limit or DEFAULT_COMPLETIONS, progress.count))
    return 0


def _show(result: dict[str, Any]) -> None:
    rows = [
        (name, *(f"{series[times][key]:.1f}" for times in ("total_ms", "first_token_ms") for key in ("p50", "p95")))
        for name, series in (("alone", result["alone"]), ("next to a chat", result["beside_a_chat"]))
    ]
    print_table(("COMPLETIONS", "P50 MS", "P95 MS", "FIRST TOKEN P50", "P95"), rows)
    print(f"p95 next to a chat over alone: {result['p95_beside_over_alone']:.2f}")
    print(f"round trip without generation: p95 {result['round_trip_ms']['p95']:.2f} ms")
