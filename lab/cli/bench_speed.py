"""`localdflash bench speed`: speed, acceptance, and whether drafting changes an answer, on our prompts."""

from pathlib import Path
from typing import Any

import click

from localdflash.base.errors import UsageError
from localdflash.cli.options import chat_pair_options, requested_engine
from localdflash.cli.output import print_table
from localdflash.lab.cli.bench_chat import is_chat_pair
from localdflash.lab.cli.bench_output import (
    BenchProgress,
    check_outputs,
    choose_chat_pair,
    json_option,
    limit_option,
    picture_option,
    repeats_option,
    save_result,
    suite_option,
)

MIN_LIMIT_FOR_REPEATS = 4  # without --repeats, code completions run once below this --limit, else twice


@click.command()
@limit_option("Prompts of each category; the other measurements shrink in proportion.")
@repeats_option
@suite_option
@json_option
@picture_option
@chat_pair_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    limit: int | None,
    repeats: int | None,
    suite: str,
    json_file: Path | None,
    picture: Path | None,
    **options: Any,
) -> int:
    """Run the prompt set with and without drafting, interleaved. Exit code 1 if an output differs.

    A chat pair answers 40 questions of each of seven categories, greedily and at temperature 0.7. Then follow a test
    that drafting does not change how likely each sampled token is, step costs, contexts of up to 8192 tokens and the
    daemon. The maximum duration is printed first. After Ctrl-C or an error, the results so far are shown and saved.
    """
    options = choose_chat_pair(options)
    is_chat = is_chat_pair(options["pair"], suite)
    if picture and not is_chat:
        raise UsageError("--picture: only for a chat pair")
    check_outputs(json_file, picture)
    if is_chat:
        return _bench_chat(ctx, limit, repeats or 1, json_file, picture, options)
    return _bench_code(limit, repeats or (1 if limit and limit < MIN_LIMIT_FOR_REPEATS else 2), json_file, options)


def _bench_chat(
    ctx: click.Context,
    limit: int | None,
    repeats: int,
    json_file: Path | None,
    picture: Path | None,
    options: dict[str, Any],
) -> int:
    from localdflash.lab.bench.chat.chat_picture import draw
    from localdflash.lab.bench.chat.chat_run import run
    from localdflash.lab.cli.bench_chat import has_different_outputs, show
    from localdflash.models.load_options import Options

    engine = requested_engine(ctx, options)
    with save_result(json_file, show, picture, draw) as result, BenchProgress() as progress:
        run(Options(**options), engine, limit, repeats, progress, result)
    return int(has_different_outputs(result))


def _bench_code(limit: int | None, repeats: int, json_file: Path | None, options: dict[str, Any]) -> int:
    from localdflash.lab.bench.bench_run import run
    from localdflash.models.load_options import Options

    with save_result(json_file, _show_code) as result, BenchProgress() as progress:
        result.update(run(Options(**options), limit, repeats, progress))
    same, total = result["overall"]["identical"].split("/")
    return 0 if same == total else 1


def _show_code(result: dict[str, Any]) -> None:
    rows = {**result["categories"], "overall": result["overall"]}
    print_table(
        ("CATEGORY", "PLAIN TOK/S", "PLAIN, BEST BACKEND", "TOK/S", "SPEED-UP", "TAU", "IDENTICAL", "FIRST TOKEN MS"),
        [
            (
                name,
                f"{row['ar_tok_s']:.0f}",
                f"{row['best_ar_tok_s']:.0f}",
                f"{row['tok_s']:.0f}",
                f"{row['speedup']:.2f}",
                f"{row['tau']:.2f}",
                row["identical"],
                f"{row['ttft_ms']['p50']:.1f}",
            )
            for name, row in rows.items()
        ],
    )
    if result["verify"]:
        costs = [f"{width} {cost:.2f}" for width, cost in result["verify"]["over_ar"].items()]
        print(f"verify step by width, relative to a single-token step: {', '.join(costs)}")
