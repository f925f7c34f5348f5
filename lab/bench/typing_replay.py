"""Type files key by key through `localdflash lsp`, in a copy of the workspace.

Generated tokens are read from the daemon's metrics, so no other client should use the daemon during a replay.
"""

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from localdflash.base.errors import LocaldflashError
from localdflash.lab.bench.editor import DEADLINE_MS, ENCODINGS, Editor, Style, Trace
from localdflash.lab.bench.lsp_process import Json, LanguageServer
from localdflash.lab.bench.pace import CountItems
from localdflash.lab.bench.passages import TypingJob, count_keys, first_lines
from localdflash.lab.bench.typist import TypedKeys, Typist
from localdflash.server.client import Client
from localdflash.server.spawn import PROGRAM
from localdflash.text.syntax import language_of

NotificationHandler = Callable[[str, Any], None]  # receives method and parameters
LANGUAGE_IDS = {"tsx": "typescriptreact", "": "plaintext"}  # LSP's ids where they differ from ours
_TOKENS = re.compile(r"^localdflash_tokens_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class TypingOptions:
    """Options of a replay: editor to imitate, maximum keys per file, seed, typing speed relative to a person."""

    style: Style
    keys: int
    seed: int
    speed: float = 1.0


@dataclass
class TypingReplay:
    """Result of a replay: one trace for all files, the keys of the files typed to their end, and engine statistics."""

    trace: Trace = field(default_factory=Trace)
    files: dict[str, TypedKeys] = field(default_factory=dict)
    seconds: float = 0.0
    engine: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = True


def run(
    jobs: Sequence[TypingJob],
    workspace: Path,
    client: Client,
    typing_options: TypingOptions,
    replay: TypingReplay,
    count: CountItems,
) -> None:
    """Write the jobs' files into `workspace` and type them all, filling `replay`; `client` is connected to the daemon.

    After Ctrl-C or an error, `replay` has the results so far.
    """
    for job in jobs:
        path = workspace / job.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(job.text, encoding="utf-8")
    tokens_before, before = _generated_tokens(client), client.get("/ps?role=completion")
    requests_before = before.get("requests")
    # The language server must not replace the fallback pair, if that is to be measured.
    start = partial(_start, ("--pair", before["options"]["pair"]))
    began = time.perf_counter()
    try:
        asyncio.run(type_all(start, jobs, workspace, typing_options, replay, count))
        replay.interrupted = False
    finally:
        replay.seconds = time.perf_counter() - began
        status, tokens_after = client.get("/ps?role=completion"), _generated_tokens(client)
        replay.engine = {
            **{key: status[key] for key in ("pair", "backend", "context") if key in status},
            "requests": status["requests"] - requests_before if requests_before is not None else None,
            "generated_tokens": tokens_after - tokens_before
            if tokens_before is not None and tokens_after is not None
            else None,
            "shown_tokens": _count_tokens(client, replay.trace.pieces) if tokens_after is not None else None,
            **replay.engine,
        }


async def _start(options: Sequence[str], workspace: Path, on_notification: NotificationHandler) -> LanguageServer:
    command = (sys.executable, "-P", "-c", PROGRAM, "lsp", *options)
    return await LanguageServer.start(command, str(workspace), on_notification)


async def type_all(
    start: Callable[[Path, NotificationHandler], Awaitable[LanguageServer]],
    jobs: Sequence[TypingJob],
    workspace: Path,
    typing_options: TypingOptions,
    replay: TypingReplay,
    count: CountItems,
) -> None:
    """Type all jobs through a language server; fill the trace and files of `replay`, and `engine` from the server."""
    session = _ReplaySession()
    session.server = await start(workspace, session.on_notification)
    try:
        encoding = await _initialize(session.server, workspace, typing_options.style)
        session.editor = Editor(session.server, typing_options.style, encoding, replay.trace)
        for number, job in enumerate(jobs):
            replay.files[job.name] = await _type_file(session, job, workspace, typing_options)
            count(number + 1, len(jobs), job.name)
        with suppress(LocaldflashError):  # a server that does not know the request
            session.status = await session.server.request_and_wait("localdflash/status", {})
        session.server.check()
    finally:
        replay.engine = session.report()
        await session.server.stop()


class _ReplaySession:
    """Server process and editor of a replay, with the server's notifications."""

    def __init__(self) -> None:
        self.server: LanguageServer
        self.editor: Editor | None = None
        self.status: Any = None
        self.messages: list[str] = []

    def on_notification(self, method: str, params: Any) -> None:
        """Handle a notification of the server."""
        if method == "localdflash/didUpdateInlineCompletion" and self.editor:
            self.editor.on_pushed(params)
        elif method == "didChangeStatus":
            self.status = params
        elif method == "window/showMessage":
            self.messages.append(str(params.get("message")))

    def report(self) -> dict[str, Any]:
        """Return the server's speed and messages as JSON values."""
        status = self.status if isinstance(self.status, dict) else {}
        speed = {"tau": status.get("tau"), "tokens_per_second": status.get("tokensPerSecond")}
        return {**speed, "messages": self.messages}


async def _initialize(server: LanguageServer, workspace: Path, style: Style) -> str:
    """Initialize the server; return the position encoding."""
    folder = workspace.as_uri()
    inline = {"inlineCompletion": {"dynamicRegistration": False}}
    params: Json = {
        "processId": None,
        "rootUri": folder,
        "workspaceFolders": [{"uri": folder, "name": workspace.name}],
        "capabilities": {"general": {"positionEncodings": ENCODINGS[style]}, "textDocument": inline},
        "initializationOptions": {"push": style == "neovim", "deadlineMs": DEADLINE_MS},
    }
    capabilities = (await server.request_and_wait("initialize", params))["capabilities"]
    if capabilities.get("inlineCompletionProvider") in (None, False):
        raise LocaldflashError("the language server does not support inline completions")
    server.notify("initialized", {})
    return str(capabilities.get("positionEncoding") or "utf-16")


async def _type_file(
    session: _ReplaySession, job: TypingJob, workspace: Path, typing_options: TypingOptions
) -> TypedKeys:
    editor, keys_left, typed = session.editor, typing_options.keys, TypedKeys()
    assert editor is not None
    language = language_of(job.name)
    editor.open((workspace / job.name).as_uri(), LANGUAGE_IDS.get(language, language), job.text)
    typist = Typist(editor, f"{typing_options.seed} {job.name}", typing_options.speed)
    for passage in job.passages:
        editor.remove(passage.start, passage.removed)
        text = first_lines(passage.text, keys_left)
        keys_left -= count_keys(text, at_line_start=True)
        await typist.type(text, typed)
        if keys_left <= 0:
            break
    editor.close()
    return typed


def _generated_tokens(client: Client) -> int | None:
    """Return the number of tokens that the daemon has generated; None if it reports no metrics."""
    try:
        match = _TOKENS.search(client.get_text("/metrics"))
    except LocaldflashError:
        return None
    return int(float(match[1])) if match else None


def _count_tokens(client: Client, pieces: Sequence[str]) -> int:
    return sum(len(client.post("/tokenize", {"content": piece})["tokens"]) for piece in pieces if piece)
