"""`localdflash complete FILE:LINE:COL`: print the text to insert at a cursor."""

import asyncio
import os
import re
import secrets
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from localdflash.base.errors import DeviceFailed, EngineGone, UsageError
from localdflash.cli import shell_completion
from localdflash.cli.interrupt import Interrupt
from localdflash.cli.options import (
    completion_pair_options,
    daemon_option,
    given,
    requested_engine,
    sampling_options,
    take_sampling,
)
from localdflash.cli.output import ENGINE_RESTARTED, print_json, say
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lsp.foreign.named import RemoteServer
from localdflash.models.config import load_config
from localdflash.server import private
from localdflash.server.client import Client
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.refusals import Json
from localdflash.server.spawn import connect
from localdflash.text.sanitize import printable, sanitize
from localdflash.text.syntax import language_of

if TYPE_CHECKING:
    from localdflash.lsp.engine_completer import Event

MAX_RESTARTS = 2  # of the daemon, for one completion
MAX_FILE_BYTES = 4_000_000  # bytes
INDEXING_SECONDS = 10.0  # seconds to look through the repository
MAX_CONTEXT_CHARS = 8000  # characters of other code; the prompt takes what fits


@click.command()
@click.argument("place", metavar="FILE:LINE:COL", shell_complete=shell_completion.file)
@click.option("--max-tokens", type=click.IntRange(1), default=96, show_default=True, help="Maximum tokens to insert.")
@click.option("--line", "one_line", is_flag=True, help="Stop at the end of the line.")
@click.option(
    "--explain",
    is_flag=True,
    help="Print the prompt that an editor would send: token budget, parts, and omitted text.",
)
@click.option(
    "--no-draft",
    is_flag=True,
    help="Disable drafting and use a private engine, for comparison; the text is identical.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the insertion and its statistics as JSON.")
@daemon_option
@completion_pair_options
@sampling_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    place: str,
    max_tokens: int,
    one_line: bool,
    explain: bool,
    no_draft: bool,
    as_json: bool,
    no_daemon: bool,
    **options: Any,
) -> int:
    """Complete the code at FILE:LINE:COL and print the text to insert, up to the end of the statement or block.

    Lines and columns count from 1; columns are characters, and the one after the last is the end of the line.
    """
    params = SamplingParams(**take_sampling(options))
    path, line, column = parse_cursor(place)
    alone = is_ignored(path)
    text = read_text(path)
    offset = offset_of(text, line, column)
    others = context_of(path, text, line - 1) if explain and not alone else []
    body = {
        **sampling_fields(params, max_tokens),
        "path": path.name,
        "prefix": text[:offset],
        "middle": "",
        "suffix": text[offset:],
        "context": others,
        "mode": "line" if one_line else "auto",
    }
    interrupt = Interrupt()
    named = RemoteServer.of(load_config(), options["pair"] if "pair" in given(ctx, options) else "")
    if no_daemon or no_draft:
        with private.started(requested_engine(ctx, {**options, "no_draft": no_draft}, "completion"), say) as client:
            filled = _request_completion(client, body, interrupt)
    elif named is None:
        filled = _fill_by_daemon(requested_engine(ctx, options, "completion"), body, interrupt)
    elif explain:
        raise UsageError("--explain needs localdflash's own engine; add --no-daemon")
    else:
        filled = _fill_by_another(named, body, interrupt)
    _tell_of_cuts(filled.explained)
    insertion = filled.text.replace("\n", "\r\n") if "\r\n" in text else filled.text
    if as_json:
        explained = filled.explained if explain else {}
        print_json({"insertion": insertion, "finish": filled.finish, **filled.numbers, **explained})
    elif explain:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in explained_lines(filled.explained)))
    else:
        sys.stdout.write(sanitize(insertion) if sys.stdout.isatty() else insertion)
        sys.stdout.write("\n" if sys.stdout.isatty() else "")
    return 130 if interrupt.set else 0


class Insertion(NamedTuple):
    """The inserted text, why it ended, its statistics, and the prompt if that is known."""

    text: str
    finish: str
    numbers: dict[str, Any]
    explained: dict[str, Any]


def _fill_by_daemon(engine: EngineSpec, body: Mapping[str, object], interrupt: Interrupt) -> Insertion:
    """Complete with the daemon. If that goes away, start it again and repeat the request: the answer is the same."""
    client = connect(engine, say)
    for left in reversed(range(MAX_RESTARTS + 1)):
        try:
            return _request_completion(client, body, interrupt)
        except (EngineGone, DeviceFailed) as error:
            if not left:
                raise EngineGone(f"{error}: try again") from None
        client = connect(engine, say)
        say(ENGINE_RESTARTED)
    raise AssertionError


def _fill_by_another(engine: RemoteServer, body: Mapping[str, object], interrupt: Interrupt) -> Insertion:
    """Complete with the server that the settings name."""
    try:
        return _insertion(_events_of(engine, body), interrupt)
    except EngineGone as error:
        raise EngineGone(f"{error}: try again") from None


def _events_of(engine: RemoteServer, body: Mapping[str, object]) -> "Generator[Event, None, None]":
    from localdflash.lsp.foreign.finding import find_server

    with asyncio.Runner() as runner:
        source = runner.run(find_server(engine.address(), engine.model))
        events = source.complete(body)

        async def following() -> "Event | None":
            return await anext(events, None)

        try:
            while event := runner.run(following()):
                yield event
        finally:
            source.close()


def _request_completion(client: Client, body: Mapping[str, object], interrupt: Interrupt) -> Insertion:
    """Complete with localdflash's own engine."""
    return _insertion(client.stream("/complete", {**body, "explain": True, "stream": True}), interrupt)


def _insertion(events: "Generator[Event, None, None] | Generator[Json, None, None]", interrupt: Interrupt) -> Insertion:
    """Return the text of a completion's events; if interrupted, the text so far."""
    text, finish = "", "cancelled"
    numbers: dict[str, Any] = {}
    explained: dict[str, Any] = {}
    with interrupt:
        for part in interrupt.each(events):
            event: Mapping[str, Any] = part
            explained = {name: event[name] for name in ("prompt", "budget") if name in event} or explained
            if "steps" in event.get("timings", ()):
                numbers = _statistics(event["timings"])
            elif "finish" in event:  # another server says no more
                numbers = {"tokens": event.get("tokens", 0)}
            finish = event.get("finish") or finish
            text += event.get("text") or ""
    return Insertion(text, finish, numbers, explained)


def sampling_fields(params: SamplingParams, max_tokens: int) -> dict[str, object]:
    """Return a request's fields for these parameters; those that ask for nothing are left out.

    Sampling without a seed gets one, so that a repeated request gives the same answer.
    """
    fields: dict[str, object] = {"temperature": params.temperature, "max_tokens": max_tokens}
    nothing = SamplingParams()
    for name in ("top_k", "top_p", "min_p", "repetition_penalty"):
        if (value := getattr(params, name)) != getattr(nothing, name):
            fields[name] = value
    if params.temperature:
        fields["seed"] = secrets.randbits(31) if params.seed is None else params.seed
    return fields


def _statistics(timings: Json) -> dict[str, Any]:
    """Return the statistics that the commands print."""
    return {
        "tokens": timings.get("predicted_n", 0),
        "steps": timings.get("steps", 0),
        "tau": timings.get("tau", 0.0),
        "drafted": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0),
        "accept_by_slot": timings.get("accept_by_slot", []),
        "steps_by_drafter": timings.get("steps_by_drafter", {}),
        "ms": {"prompt": timings.get("prompt_ms", 0.0), "answer": timings.get("predicted_ms", 0.0)},
        "tokens_per_second": round(timings.get("predicted_per_second", 0.0), 1),
    }


def offset_of(text: str, line: int, column: int) -> int:
    """Where line and column (both from 1, columns in characters) lie in the text; UsageError names what is outside."""
    lines = text.split("\n")  # as editors do; str.splitlines also splits at form feeds and the like
    if not 1 <= line <= len(lines):
        raise UsageError(f"line {line} is outside the file, whose last line is {len(lines)}")
    width = len(lines[line - 1])
    if line < len(lines) and lines[line - 1].endswith("\r"):
        width -= 1
    if not 1 <= column <= width + 1:
        raise UsageError(f"column {column} is outside line {line}, whose last column is {width + 1}")
    return sum(len(before) + 1 for before in lines[: line - 1]) + column - 1


def is_ignored(path: Path) -> bool:
    """Return whether git ignores a file; raise UsageError for a file that may not be put into a prompt at all.

    An ignored file is completed only on request and without code of other files.
    """
    from localdflash.code.context.denied import Refusal
    from localdflash.code.context.index import Workspace

    root = repository_of(path) or Path(os.path.realpath(path)).parent
    why = Workspace([root], lambda _: None).refusal(path)
    if why not in (None, Refusal.GIT):
        raise UsageError(f"{path}: never put into a prompt: {why.value}")
    return why is Refusal.GIT


def repository_of(path: Path) -> Path | None:
    """Return the top folder of the repository that a file lies in."""
    return next((folder for folder in path.absolute().parents if (folder / ".git").exists()), None)


def context_of(path: Path, text: str, line: int) -> list[dict[str, Any]]:
    """Other code of the file's repository for the prompt; none if the file is in no repository."""
    from localdflash.code.context.context import OpenFile
    from localdflash.code.context.edits import EditHistory
    from localdflash.code.context.gather import gather
    from localdflash.code.context.index import Workspace

    path = path.absolute()
    root = repository_of(path)
    if root is None:
        return []
    workspace = Workspace([root], lambda _: None)
    workspace.start()
    try:
        workspace.settled(INDEXING_SECONDS)
        current = OpenFile(path, path.relative_to(root).as_posix(), language_of(path.name), text)
        parts = gather(workspace, current, line, [], EditHistory(), MAX_CONTEXT_CHARS)
    finally:
        workspace.close()
    return [{"kind": one.kind, "name": one.name, "text": one.text, "weight": one.weight} for one in parts]


def explained_lines(explained: dict[str, Any]) -> Iterator[str]:
    """Yield the budget and the parts of a prompt, as a table; lines count from 1."""
    budget, parts = explained["budget"], explained["prompt"]
    yield (
        f"context {budget['context']} tokens: prompt {budget['prompt']} (other code at most {budget['head']}, suffix"
        f" {budget['suffix']}, typed {budget['middle']}; prefix {budget['prefix']}), answer {budget['answer']}"
    )
    yield f"{'part':<11}{'tokens':>6}  {'lines':<13}{'name'}"
    for part in parts:
        lines = f"{part['lines'][0] + 1}-{part['lines'][1] + 1}" if part["lines"] else ""
        note = "  (left out)" if part["left_out"] else "  (cut)" if part["cut"] else ""
        yield f"{part['kind']:<11}{part['tokens']:>6}  {lines:<13}{part['name']}{note}"
    yield f"{'in all':<11}{sum(part['tokens'] for part in parts):>6}"


def _tell_of_cuts(explained: dict[str, Any]) -> None:
    """Say on stderr if a file is not wholly in the prompt."""
    own = [part for part in explained.get("prompt", ()) if part["lines"]]
    if any(part["cut"] for part in own):
        first, last = own[0]["lines"][0] + 1, own[-1]["lines"][1] + 1
        print(f"The prompt holds lines {first} to {last}: --explain shows it.", file=sys.stderr)


def parse_cursor(place: str) -> tuple[Path, int, int]:
    """Parse FILE:LINE:COL; the file's name may hold colons."""
    parts = place.rsplit(":", 2)
    if len(parts) != 3 or not parts[0] or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts[1:]):
        raise UsageError(f"{place!r}: expected FILE:LINE:COL, for example app.py:12:9")
    return Path(parts[0]), int(parts[1]), int(parts[2])


def read_text(path: Path) -> str:
    """Return the text of a source file; UsageError if it is no file, too large, binary or not UTF-8."""
    try:
        if not path.is_file():
            raise UsageError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path}: larger than {MAX_FILE_BYTES // 1_000_000} MB; not a source file")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror}") from None
    if b"\0" in data:
        raise UsageError(f"{path}: a binary file, not text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}; convert the file to UTF-8") from None
