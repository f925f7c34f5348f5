"""`localdflash complete FILE:LINE:COL`: print the completion at a cursor."""

import asyncio
import os
import re
import secrets
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from localdflash.base.errors import DeviceError, EngineDisconnect, ModelError, UsageError
from localdflash.cli import shell_completion
from localdflash.cli.interrupt import Interrupt
from localdflash.cli.options import (
    completion_pair_options,
    daemon_option,
    given_options,
    no_draft_option,
    requested_engine,
    sampling_options,
    take_sampling,
)
from localdflash.cli.output import DAEMON_RESTARTED, print_json, say
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lsp.lsp_settings import RemoteServer
from localdflash.models.config import load_config
from localdflash.server import private
from localdflash.server.client import Client
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.refusals import Json
from localdflash.server.spawn import ensure_daemon
from localdflash.text.sanitize import printable, sanitize
from localdflash.text.syntax import language_of

if TYPE_CHECKING:
    from localdflash.lsp.engine_completer import Event

MAX_RESTARTS = 2  # restarts of the daemon for one completion
MAX_FILE_BYTES = 4_000_000
INDEXING_SECONDS = 3.0  # maximum time to index the repository


@click.command()
@click.argument("cursor", metavar="FILE:LINE:COL", shell_complete=shell_completion.file)
@click.option("--max-tokens", type=click.IntRange(1), default=96, show_default=True, help="Maximum tokens to insert.")
@click.option("--line", "one_line", is_flag=True, help="Stop at the end of the line.")
@click.option("--explain", is_flag=True, help="Print an editor's prompt: token budget, parts, and omitted text.")
@no_draft_option
@click.option("--json", "as_json", is_flag=True, help="Print the insertion and its statistics as JSON.")
@daemon_option
@completion_pair_options
@sampling_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    cursor: str,
    max_tokens: int,
    one_line: bool,
    explain: bool,
    no_draft: bool,
    as_json: bool,
    no_daemon: bool,
    **options: Any,
) -> int:
    """Complete the code at FILE:LINE:COL and print the text to insert.

    Lines and columns count from 1; columns are characters, and the one after the last is the end of the line.
    """
    params = SamplingParams(**take_sampling(options))
    path, line, column = parse_cursor(cursor)
    is_ignored = check_allowed(path)
    text = read_text(path)
    offset = offset_of(text, line, column)
    root = repository_of(path)
    body = {
        **sampling_fields(params, max_tokens),
        "path": path.absolute().relative_to(root).as_posix() if root else path.name,
        "prefix": text[:offset],
        "middle": "",
        "suffix": text[offset:],
        "context": context_of(path, root, text, line - 1) if root and not is_ignored else [],
        "mode": "line" if one_line else "auto",
    }
    interrupt = Interrupt()
    remote = RemoteServer.of(load_config(), options["pair"] if "pair" in given_options(ctx, options) else "")
    if no_daemon or no_draft:
        with private.private_daemon(
            requested_engine(ctx, {**options, "no_draft": no_draft}, "completion"), say
        ) as client:
            completion = _request_completion(client, body, interrupt)
    elif remote is None:
        completion = _complete_by_daemon(requested_engine(ctx, options, "completion"), body, interrupt)
    elif explain:
        raise UsageError("--explain needs localdflash's own engine; add --no-daemon")
    else:
        completion = _read_completion(_remote_events(remote, body), interrupt)
    _report_cuts(completion.explained)
    insertion = completion.text.replace("\n", "\r\n") if "\r\n" in text else completion.text
    if as_json:
        explained = completion.explained if explain else {}
        print_json({"insertion": insertion, "finish": completion.finish, **completion.numbers, **explained})
    elif explain:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in explained_lines(completion.explained)))
    else:
        sys.stdout.write(sanitize(insertion) if sys.stdout.isatty() else insertion)
        sys.stdout.write("\n" if sys.stdout.isatty() else "")
    return 130 if interrupt.is_set else 0


class Completion(NamedTuple):
    """Inserted text, finish reason, statistics, and, from the daemon only, parts and token budget of the prompt."""

    text: str
    finish: str
    numbers: dict[str, Any]
    explained: dict[str, Any]


def _complete_by_daemon(engine: EngineSpec, body: Mapping[str, object], interrupt: Interrupt) -> Completion:
    """Complete with the daemon. If the daemon exits, restart it and request again, up to `MAX_RESTARTS` times."""
    client = ensure_daemon(engine, say)
    for _ in range(MAX_RESTARTS):
        with suppress(EngineDisconnect, DeviceError):
            return _request_completion(client, body, interrupt)
        client = ensure_daemon(engine, say)
        say(DAEMON_RESTARTED)
    try:
        return _request_completion(client, body, interrupt)
    except (EngineDisconnect, DeviceError) as error:
        raise EngineDisconnect(f"{error}: try again") from None


def _remote_events(server: RemoteServer, body: Mapping[str, object]) -> "Generator[Event, None, None]":
    """Yield the events of a completion by the remote server in the settings."""
    from localdflash.lsp.remote.remote_completer import find_server

    with asyncio.Runner() as runner:
        try:
            source = runner.run(find_server(server.address(), server.model))
            events = source.complete(body)

            async def next_event() -> "Event | None":
                return await anext(events, None)

            with closing(source):
                while event := runner.run(next_event()):
                    yield event
        except EngineDisconnect as error:
            raise EngineDisconnect(f"{error}: try again") from None


def _request_completion(client: Client, body: Mapping[str, object], interrupt: Interrupt) -> Completion:
    return _read_completion(client.stream("/complete", {**body, "explain": True, "stream": True}), interrupt)


def _read_completion(
    events: "Generator[Event, None, None] | Generator[Json, None, None]", interrupt: Interrupt
) -> Completion:
    """Join the events of a completion until its end, or until Ctrl-C."""
    text, finish = "", "cancelled"
    numbers: dict[str, Any] = {}
    explained: dict[str, Any] = {}
    with interrupt:
        for part in interrupt.each(events):
            event: Mapping[str, Any] = part
            explained = {name: event[name] for name in ("prompt", "budget") if name in event} or explained
            if "steps" in event.get("timings", ()):
                numbers = _statistics(event["timings"])
            elif "finish" in event:  # a remote server reports no other statistics
                numbers = {"tokens": event.get("tokens", 0)}
            finish = event.get("finish") or finish
            text += event.get("text") or ""
    if finish == "next_edit":
        raise ModelError(
            f"{event['model']} predicts edits and does not fill in the middle; editors show its next edits"
        )
    return Completion(text, finish, numbers, explained)


def sampling_fields(params: SamplingParams, max_tokens: int) -> dict[str, object]:
    """Return the fields that are not defaults. With sampling, add a seed, so that a repeated request is identical."""
    fields: dict[str, object] = {"temperature": params.temperature, "max_tokens": max_tokens}
    default = SamplingParams()
    for name in ("top_k", "top_p", "min_p", "repetition_penalty"):
        if (value := getattr(params, name)) != getattr(default, name):
            fields[name] = value
    if params.temperature:
        fields["seed"] = secrets.randbits(31) if params.seed is None else params.seed
    return fields


def _statistics(timings: Json) -> dict[str, Any]:
    names = {"tokens": "predicted_n", "drafted": "draft_n", "accepted": "draft_n_accepted"}
    unchanged = ("steps", "tau", "accept_by_slot", "steps_by_drafter")
    return {name: timings[field] for name, field in (names | {name: name for name in unchanged}).items()} | {
        "ms": {"prompt": timings["prompt_ms"], "answer": timings["predicted_ms"]},
        "tokens_per_second": round(timings["predicted_per_second"], 1),
    }


def offset_of(text: str, line: int, column: int) -> int:
    """Return the character offset of line and column, both from 1; UsageError if they are outside the text."""
    lines = text.split("\n")  # like editors; str.splitlines would also split at form feeds
    if not 1 <= line <= len(lines):
        raise UsageError(f"line {line} is outside the file, whose last line is {len(lines)}")
    width = len(lines[line - 1])
    if line < len(lines) and lines[line - 1].endswith("\r"):
        width -= 1
    if not 1 <= column <= width + 1:
        raise UsageError(f"column {column} is outside line {line}, whose last column is {width + 1}")
    return sum(len(before) + 1 for before in lines[: line - 1]) + column - 1


def check_allowed(path: Path) -> bool:
    """Raise UsageError if a file must not be put into a prompt; otherwise return whether git ignores the file."""
    from localdflash.code.context.denied import Refusal
    from localdflash.code.context.index import Workspace

    root = repository_of(path) or Path(os.path.realpath(path)).parent
    refusal = Workspace([root], lambda _: None).refusal(path)
    if refusal not in (None, Refusal.GIT):
        raise UsageError(f"{path}: never put into a prompt: {refusal.value}")
    return refusal is Refusal.GIT


def repository_of(path: Path) -> Path | None:
    """Return the top folder of the git repository that contains a file, or None."""
    return next((folder for folder in path.absolute().parents if (folder / ".git").exists()), None)


def context_of(path: Path, root: Path, text: str, line: int) -> list[dict[str, Any]]:
    """Return code from other files of the repository for the prompt; `line`, the cursor's, counts from 0."""
    from localdflash.code.context.context import OpenFile
    from localdflash.code.context.gather import gather
    from localdflash.code.context.index import Workspace

    path = path.absolute()
    workspace = Workspace([root], lambda _: None)
    workspace.start()
    try:
        workspace.settled(INDEXING_SECONDS)
        current = OpenFile(path, path.relative_to(root).as_posix(), language_of(path.name, text=text), text)
        parts = gather(workspace, current, line, [], [])
    finally:
        workspace.close()
    return [{"kind": one.kind, "name": one.name, "text": one.text, "weight": one.weight} for one in parts]


def explained_lines(explained: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table with the budget and the parts of a prompt."""
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


def _report_cuts(explained: dict[str, Any]) -> None:
    """If the prompt lacks a part of the file, report on stderr which lines it has."""
    in_file = [part for part in explained.get("prompt", ()) if part["lines"]]
    if any(part["cut"] for part in in_file):
        say(f"The prompt holds lines {in_file[0]['lines'][0] + 1} to {in_file[-1]['lines'][1] + 1}; see --explain.")


def parse_cursor(cursor: str) -> tuple[Path, int, int]:
    """Parse FILE:LINE:COL; the file name may contain colons."""
    parts = cursor.rsplit(":", 2)
    if len(parts) != 3 or not parts[0] or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts[1:]):
        raise UsageError(f"{cursor!r}: expected FILE:LINE:COL, for example app.py:12:9")
    return Path(parts[0]), int(parts[1]), int(parts[2])


def read_text(path: Path) -> str:
    """Return the text of a source file; UsageError if it is missing, too large, binary or not UTF-8."""
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
