"""`localdflash bench`: measure speed, acceptance and identity with plain decoding, as one JSON object.

Other measurements of the same engine: other drafters for the same target (`--against`), as clients feel it
(`--server`), as a person who types does (`--typing`), and how good its infillings are (`--infill`).
"""

import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from localdflash.base.errors import UsageError
from localdflash.cli import shell_completion
from localdflash.cli.options import pair_options, requested_engine
from localdflash.cli.output import print_fields, print_table
from localdflash.lab.cli.bench_chat import chats
from localdflash.models.config import load_config
from localdflash.text.sanitize import printable

if TYPE_CHECKING:
    from localdflash.server.client import Client
    from localdflash.server.engine_spec import PairRole

COMPLETIONS = 200
KEYS = 150  # of a file: about half a minute


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE[:LINE]]...", shell_complete=shell_completion.file)
@click.option("--limit", type=click.IntRange(1), help="How many prompts of each category, completions, files or tasks.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 20),
    help="Runs of each prompt in each way; 2 where models complete, 1 where they chat.",
)
@click.option(
    "--suite",
    type=click.Choice(("auto", "code", "chat")),
    default="auto",
    help="Prompts: completions of code, or chats. auto: chats for a model that cannot fill in the middle.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here.")
@click.option("--server", "of_server", is_flag=True, help="Measure the shared engine as its clients feel it instead.")
@click.option("--typing", "by_typing", is_flag=True, help="Type files through the language server instead.")
@click.option(
    "--as",
    "style",
    type=click.Choice(("neovim", "vscode")),
    default="neovim",
    help="With --typing: the editor to imitate.",
)
@click.option("--commit", "revision", help="With --typing: the lines that a commit of this repository added.")
@click.option(
    "--keys",
    type=click.IntRange(1),
    default=KEYS,
    show_default=True,
    help="With --typing: most keys to type of a file.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0.1, 100),
    default=1.0,
    help="With --typing: how many times faster than a person, for tests.",
)
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="With --typing or chats: draw a .png or .svg."
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="With --typing: seed of the gaps between keys and of the parts typed.",
)
@click.option(
    "--infill",
    "tasks_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Infill the tasks of a HumanEval-Infilling file (.jsonl, .jsonl.gz) instead, and RUN THEIR TESTS.",
)
@click.option(
    "--against",
    "drafters",
    metavar="SPEC",
    multiple=True,
    help="Compare the pair's drafter with this one (see --drafter), each alone on llama.cpp; may be repeated.",
)
@pair_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    files: tuple[str, ...],
    limit: int | None,
    repeats: int | None,
    suite: str,
    json_file: Path | None,
    of_server: bool,
    by_typing: bool,
    style: Any,
    revision: str | None,
    keys: int,
    speed: float,
    picture: Path | None,
    seed: int,
    tasks_file: Path | None,
    drafters: tuple[str, ...],
    **options: Any,
) -> int:
    """Run the prompt set with drafting and without, in turn. Exit code 1 if an output differs.

    A pair that chats runs 40 questions each of seven kinds in every way to decode, greedily and at 0.7 with seeds, then
    what is drawn, costs, contexts of up to 8192 tokens and the daemon. How long that takes is said before it begins;
    --limit N takes N questions of each kind and less of the rest; Ctrl-C ends it with what it has.

    With --server: completions alone and beside a streaming chat, cancellations, round trips; --limit completions each.

    With --typing: type parts of FILEs, or what --commit added, or parts of held-out files, at a person's pace through
    the language server; --limit files.

    With --infill: exact matches, edit similarity and pass@1; --limit tasks, spread over the file.

    With --against: the pair's drafter and others, each alone: tokens a second over plain decoding, with as many nodes
    as pay and with drafts of one length, and tokens a verify; --limit prompts of each kind.
    """
    if of_server + by_typing + (tasks_file is not None) + bool(drafters) > 1:
        raise UsageError("--server, --typing, --infill and --against are different measurements: take one of them")
    if not by_typing and (files or revision is not None):
        raise UsageError("files and --commit are for --typing: add it")
    others = of_server or by_typing or tasks_file or drafters
    talks = not others and chats(options["pair"], suite)
    if picture and not (by_typing or talks):
        raise UsageError("--picture is for --typing and for pairs that chat")
    _make_room(json_file, picture)
    if of_server:
        return _bench_server(ctx, limit or COMPLETIONS, json_file, options)
    if by_typing:
        from localdflash.lab.bench.typing_replay import Manner

        manner = Manner(style, keys, seed, speed)
        return _bench_typing(ctx, files, revision, limit, manner, json_file, picture, options)
    if tasks_file:
        return _bench_infill(ctx, tasks_file, limit, json_file, options)
    if drafters:
        return _bench_drafters(ctx, drafters, suite, limit, repeats or 1, json_file, options)
    if talks:
        return _bench_chat(ctx, limit, repeats or 1, json_file, picture, options)
    from localdflash.lab.bench.bench_run import run
    from localdflash.models.load_options import Options

    result = run(Options(**options), limit, repeats or 2, _progress)
    print(file=sys.stderr)
    _write(json_file, result)
    rows = {**result["categories"], "overall": result["overall"]}
    print_table(
        ("CATEGORY", "PLAIN TOK/S", "BEST PLAIN", "TOK/S", "SPEED-UP", "TAU", "IDENTICAL", "FIRST TOKEN MS"),
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
        costs = [f"{rows} {cost:.2f}" for rows, cost in result["verify"]["over_ar"].items()]
        print(f"verify by rows, in plain steps: {', '.join(costs)}")
    same, total = rows["overall"]["identical"].split("/")
    return 0 if same == total else 1


def _bench_chat(
    ctx: click.Context,
    limit: int | None,
    repeats: int,
    json_file: Path | None,
    picture: Path | None,
    options: dict[str, Any],
) -> int:
    from localdflash.lab.bench.chat.chat_picture import draw
    from localdflash.lab.cli.bench_chat import measure, show
    from localdflash.models.load_options import Options

    result = {"command": _command(ctx), **measure(Options(**options), requested_engine(ctx, options), limit, repeats)}
    _write(json_file, result)
    if picture:
        draw(result, picture)
    return show(result)


def _bench_drafters(
    ctx: click.Context,
    drafters: tuple[str, ...],
    suite: str,
    limit: int | None,
    repeats: int,
    json_file: Path | None,
    options: dict[str, Any],
) -> int:
    from localdflash.lab.bench import compare_drafters
    from localdflash.models.load_options import Options

    ask = compare_drafters.chats(limit) if chats(options["pair"], suite) else compare_drafters.completions(limit)
    result = {"command": _command(ctx), **compare_drafters.run(Options(**options), drafters, ask, repeats, _progress)}
    print(file=sys.stderr)
    _write(json_file, result)
    print_table(
        ("DRAFTER", "KIND", "PLAIN TOK/S", "TOK/S", "/ PLAIN", "FIXED / PLAIN", "TAU", "FIXED TAU", "IDENTICAL"),
        [
            (
                Path(row["drafter"]).name,
                row["kind"],
                f"{row['tok_s']['plain']:.0f}",
                f"{row['tok_s']['drafting']:.0f}",
                *(f"{row[what][way]:.2f}" for what in ("over_plain", "tau") for way in ("drafting", "forced")),
                row["identical"],
            )
            for row in result["drafters"]
        ],
    )
    counts = [row["identical"].split("/") for row in result["drafters"]]
    return 0 if all(same == asked for same, asked in counts) else 1


def _bench_server(ctx: click.Context, completions: int, json_file: Path | None, options: dict[str, Any]) -> int:
    from localdflash.lab.bench.daemon_latency import run

    result = run(_connect_own_engine(ctx, options, "--server"), completions)
    _write(json_file, result)
    rows = [
        (name, *(f"{times[at]:.1f}" for times in (arm["total_ms"], arm["first_token_ms"]) for at in ("p50", "p95")))
        for name, arm in (("alone", result["alone"]), ("beside a chat", result["beside_a_chat"]))
    ]
    print_table(("COMPLETIONS", "P50 MS", "P95 MS", "FIRST TOKEN P50", "P95"), rows)
    print(f"p95 beside a chat over alone: {result['p95_beside_over_alone']:.2f}")
    print(f"round trip without generation: p95 {result['round_trip_ms']['p95']:.2f} ms")
    return 0


def _bench_typing(
    ctx: click.Context,
    places: tuple[str, ...],
    revision: str | None,
    limit: int | None,
    manner: Any,
    json_file: Path | None,
    picture: Path | None,
    options: dict[str, Any],
) -> int:
    from localdflash.lab.bench import typing, typing_replay
    from localdflash.lab.bench import typing_picture as pictures
    from localdflash.lab.bench.passages import Commit
    from localdflash.lab.cli.bench_typing import show

    if places and revision is not None:
        raise UsageError("files and --commit are two things to type: take one of them")
    with tempfile.TemporaryDirectory(prefix="localdflash-typing-") as folder:
        if revision is not None:
            commit = Commit(revision, Path.cwd())
            commit.unpack(Path(folder))
            jobs = commit.jobs()[:limit]
        else:
            jobs = typing.of_files(places, manner)[:limit] if places else typing.held_out(limit, manner)
        if not jobs:
            raise UsageError(f"commit {revision}: it added no lines to a text file")
        done = typing_replay.run(
            jobs, Path(folder), _connect_own_engine(ctx, options, "--typing", "completion"), manner, _progress
        )
    print(file=sys.stderr)
    result = {"command": _command(ctx), **typing.report(done, manner)}
    _write(json_file, result)
    if picture:
        pictures.draw(done, picture)
    show(result)
    return 1 if result["overall"]["stale"] else 0


def _bench_infill(
    ctx: click.Context, tasks_file: Path, limit: int | None, json_file: Path | None, options: dict[str, Any]
) -> int:
    from localdflash.lab.bench import infill

    tasks = infill.load(tasks_file, limit)
    print(printable(infill.warning(tasks_file)), file=sys.stderr)
    found = infill.run(_connect_own_engine(ctx, options, "--infill", "completion"), tasks, _progress)
    result = {"command": _command(ctx), **found}
    print(file=sys.stderr)
    _write(json_file, result)
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
    return 0


def _command(ctx: click.Context) -> str:
    """The command line without the option that says where the result goes."""
    words = ["localdflash", "bench"]
    for parameter in ctx.command.params:
        name, value = str(parameter.name), ctx.params.get(str(parameter.name))
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE or name in ("json_file", "picture"):
            continue
        if isinstance(parameter, click.Option):
            for one in (value or ()) if parameter.multiple else (value,):
                words.append(parameter.opts[0])
                words += [] if parameter.is_flag else [one.name if isinstance(one, Path) else str(one)]
        else:
            words += value or ()
    return shlex.join(words)


def _make_room(json_file: Path | None, picture: Path | None) -> None:
    """See that both can be written: before the minutes that it takes, not after them."""
    if picture:
        from localdflash.lab.bench.typing_picture import check

        check(picture)
        picture.parent.mkdir(parents=True, exist_ok=True)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.open("a").close()


def _write(json_file: Path | None, result: dict[str, Any]) -> None:
    if json_file:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{printable(line):60}", end="", file=sys.stderr, flush=True)


def _connect_own_engine(
    ctx: click.Context, options: dict[str, Any], option: str, role: "PairRole | None" = None
) -> "Client":
    """Connect to the daemon, for an option that measures the pair of a role."""
    from localdflash.cli.output import say
    from localdflash.server.spawn import connect

    if load_config().server.url:
        raise UsageError(f"bench {option} measures localdflash's own engine: take [server] url out of the settings")
    return connect(requested_engine(ctx, options, role), say)
