"""`localdflash bench infill`: quality of the infillings of a HumanEval-Infilling file."""

from pathlib import Path
from typing import Any

import click

from localdflash.cli.options import completion_pair_options
from localdflash.cli.output import print_fields, say
from localdflash.lab.cli.bench_output import (
    BenchProgress,
    check_outputs,
    connect_own_engine,
    json_option,
    limit_option,
    save_result,
)


@click.command()
@click.argument("tasks_file", metavar="TASKS", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@limit_option("Tasks, spread evenly over the file.")
@json_option
@completion_pair_options
@click.pass_context
def command(ctx: click.Context, /, tasks_file: Path, limit: int | None, json_file: Path | None, **options: Any) -> int:
    """Complete the tasks of a HumanEval-Infilling file (.jsonl, .jsonl.gz) and RUN THEIR TESTS in a sandbox.

    After Ctrl-C or an error, the results so far are shown and saved.
    """
    from localdflash.lab.bench import infill

    check_outputs(json_file)
    tasks = infill.load(tasks_file, limit)
    say(infill.warning(tasks_file))
    client = connect_own_engine(ctx, options, "completion")
    with save_result(json_file, _show) as result, BenchProgress() as progress:
        infill.run(client, tasks, progress.count, result)
    return 0


def _show(result: dict[str, Any]) -> None:
    print_fields(
        [
            ("tasks", str(result["tasks"])),
            ("exact match", f"{100 * result['exact_match']:.1f} %"),
            ("edit similarity", f"{100 * result['edit_similarity']:.1f} %"),
            ("pass@1", f"{100 * result['pass_at_1']:.1f} %"),
            ("tokens a second", f"{result['tokens_per_second']:.0f}"),
            ("milliseconds", f"p50 {result['latency_ms']['p50']:.0f}, p95 {result['latency_ms']['p95']:.0f}"),
            ("outcomes", ", ".join(f"{count} {name}" for name, count in result["outcomes"].items())),
        ]
    )
