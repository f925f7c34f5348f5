"""`localdflash bench drafters`: the pair's drafter compared with others on llama.cpp."""

from pathlib import Path
from typing import Any

import click

from localdflash.cli import shell_completion
from localdflash.cli.options import chat_pair_options
from localdflash.cli.output import print_table
from localdflash.lab import result_file
from localdflash.lab.cli.bench_chat import is_chat_pair
from localdflash.lab.cli.bench_output import (
    BenchProgress,
    check_outputs,
    choose_chat_pair,
    json_option,
    limit_option,
    repeats_option,
    suite_option,
)


@click.command()
@click.argument("drafters", nargs=-1, required=True, metavar="SPEC...", shell_complete=shell_completion.file)
@limit_option("Prompts of each category.")
@repeats_option
@suite_option
@json_option
@chat_pair_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    drafters: tuple[str, ...],
    limit: int | None,
    repeats: int | None,
    suite: str,
    json_file: Path | None,
    **options: Any,
) -> int:
    """Compare the pair's drafter with each SPEC (see --drafter), each alone on llama.cpp. Exit code 1 if an output
    differs.

    Reports tokens per second relative to the baseline, with as many draft tokens as pay off and with a fixed draft
    length, and the tokens per verify step.
    """
    from localdflash.lab.bench import compare_drafters
    from localdflash.models.load_options import Options

    check_outputs(json_file)
    options = choose_chat_pair(options)
    load_prompts = (
        compare_drafters.chats(limit) if is_chat_pair(options["pair"], suite) else compare_drafters.completions(limit)
    )
    with BenchProgress() as progress:
        result = compare_drafters.run(Options(**options), drafters, load_prompts, repeats or 1, progress.count)
    result_file.write(json_file, result)
    print_table(
        ("DRAFTER", "KIND", "PLAIN TOK/S", "TOK/S", "/ PLAIN", "FIXED / PLAIN", "TAU", "FIXED TAU", "IDENTICAL"),
        [
            (
                Path(row["drafter"]).name,
                row["kind"],
                f"{row['tok_s']['plain']:.0f}",
                f"{row['tok_s']['drafting']:.0f}",
                *(f"{row[field][mode]:.2f}" for field in ("over_plain", "tau") for mode in ("drafting", "forced")),
                row["identical"],
            )
            for row in result["drafters"]
        ],
    )
    counts = [row["identical"].split("/") for row in result["drafters"]]
    return 0 if all(same == total for same, total in counts) else 1
