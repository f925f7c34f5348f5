"""`localdflash bench typing`: type files through the language server at a person's pace."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from localdflash.base.errors import UsageError
from localdflash.cli import shell_completion
from localdflash.cli.options import completion_pair_options
from localdflash.cli.output import print_fields, print_table
from localdflash.lab.cli.bench_output import (
    BenchProgress,
    check_outputs,
    connect_own_engine,
    json_option,
    limit_option,
    picture_option,
    save_result,
)
from localdflash.text.sanitize import printable

DEFAULT_KEYS = 150  # maximum keys typed of one file: about half a minute
SECONDS_PER_KEY = 0.25  # estimate that includes the pauses after words and lines


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE[:LINE]]...", shell_complete=shell_completion.file)
@click.option("--as", "style", type=click.Choice(("neovim", "vscode")), default="neovim", help="The editor to imitate.")
@click.option("--commit", "revision", help="Type the lines that a commit of this repository added.")
@click.option(
    "--keys", type=click.IntRange(1), default=DEFAULT_KEYS, show_default=True, help="Maximum keys to type of a file."
)
@click.option(
    "--speed",
    type=click.FloatRange(0.1, 100),
    default=1.0,
    help="Typing speed relative to a person; higher values are for tests.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the gaps between keys and of the parts typed."
)
@limit_option("Files to type.")
@json_option
@picture_option
@completion_pair_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    files: tuple[str, ...],
    style: Any,
    revision: str | None,
    keys: int,
    speed: float,
    seed: int,
    limit: int | None,
    json_file: Path | None,
    picture: Path | None,
    **options: Any,
) -> int:
    """Type parts of FILEs, or the lines that a commit added, or parts of held-out files, through the language server.

    Reports the keystrokes saved and the latency of suggestions. Exit code 1 if a stale suggestion was shown.
    After Ctrl-C or an error, the results so far are shown and saved.
    """
    from localdflash.lab.bench import typing, typing_replay
    from localdflash.lab.bench import typing_picture as pictures
    from localdflash.lab.bench.pace import describe_duration
    from localdflash.lab.bench.passages import Commit

    if files and revision is not None:
        raise UsageError("FILE and --commit: choose one")
    check_outputs(json_file, picture)
    typing_options = typing_replay.TypingOptions(style, keys, seed, speed)
    with tempfile.TemporaryDirectory(prefix="localdflash-typing-") as folder:
        if revision is not None:
            commit = Commit(revision, Path.cwd())
            commit.unpack(Path(folder))
            jobs = commit.jobs()[:limit]
        else:
            jobs = typing.of_files(files, typing_options)[:limit] if files else typing.held_out(limit, typing_options)
        if not jobs:
            raise UsageError(f"commit {revision}: it added no lines to a text file")
        client = connect_own_engine(ctx, options, "completion")
        replay = typing_replay.TypingReplay()

        def draw(_: dict[str, Any], path: Path) -> None:
            pictures.draw(replay, path)

        with save_result(json_file, show, picture, draw) as result, BenchProgress() as progress:
            seconds = len(jobs) * keys * SECONDS_PER_KEY / speed
            progress.plan(seconds, f"{len(jobs)} files, {keys} keys each: {describe_duration(seconds)} at most.")
            try:
                typing_replay.run(jobs, Path(folder), client, typing_options, replay, progress.count)
            finally:
                if replay.files:
                    result.update(typing.report(replay, typing_options))
    return 1 if result["overall"]["stale"] else 0


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
    cells = [(name.replace("_", " "), *(f"{row[column]:.1f}" for column in columns)) for name, row in spreads.items()]
    print_table(("MILLISECONDS", *(column.upper() for column in columns)), cells)
    print()
    shares = {"from_cache": "answers with text from cache", "wasted_tokens": "tokens generated but never shown"}
    overall = result["overall"]
    counts = ("requests", "answered", "with_text", "shown", "rejected", "grown", "stale", "flicker", "late", "errors")
    print_fields(
        [
            *((name.replace("_", " "), str(overall[name])) for name in counts),
            *((label, f"{100 * overall[name]:.0f} %") for name, label in shares.items() if overall[name] is not None),
            ("keys pressed a second", f"{overall['pressed_per_second']:.1f} for {result['seconds']:.0f} s"),
        ]
    )
