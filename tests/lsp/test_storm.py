"""10 000 keys in several documents, with requests, cancels and late answers: a real server, a slow engine.

One generation at most, no stale answer, bounded memory, and silence afterwards. The oracle keeps every version of every
document that a request was made in, as the editor has it, and what would be typed next.
"""

import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from localdflash.lab.scripts.support import instant_engine
from tests.lsp.wire import Process, asking, change, changing, connected, notification, opening, request, serving
from tests.support import daemons

KEYS = 10_000
pytestmark = pytest.mark.nightly
DOCUMENTS = 3
PENDING = 12  # requests that an impatient editor leaves unanswered
INSTANT, CANCELLED = "textDocument/inlineCompletion", -32800


def source(seed: int) -> str:
    """A module whose lines are all different, so that each place is known by what stands around it."""
    functions = []
    for i in range(40):
        name = f"part_{seed}_{i}"
        lines = [f"    step_{seed}_{i}_{j} = compute({seed}, {i}, {j}, 'é😋')" for j in range(3)]
        functions.append("\n".join([f"def {name}(first_{i}, second_{i}):", *lines, f"    return step_{seed}_{i}_0"]))
    return "\n\n\n".join(functions) + "\n"


@dataclass
class Typed:
    """A document as the editor has it: typed from the start on, sometimes wrongly."""

    uri: str
    truth: str
    version: int = 1
    done: int = 0  # characters of the truth that are there
    wrong: str = ""  # what was typed instead of what follows
    asked: dict[int, str] = field(default_factory=dict)  # version: text
    known: int = 0  # the newest version that the server has answered for

    @property
    def text(self) -> str:
        return self.truth[: self.done] + self.wrong

    def cursor(self, text: str) -> tuple[int, int]:
        """Line and utf-16 column of the end."""
        line = text.rpartition("\n")[2]
        return text.count("\n"), len(line.encode("utf-16-le")) // 2

    def key(self, rng: random.Random) -> dict[str, Any]:
        """One keystroke: the next character, a wrong one, or one back."""
        end = self.cursor(self.text)
        self.version += 1
        if self.wrong:
            before = self.cursor(self.text[:-1])
            self.wrong = self.wrong[:-1]
            return change(before, end, "")
        if rng.random() < 0.05:
            self.wrong = rng.choice("qZ#(\t😋")
            return change(end, end, self.wrong)
        if self.done == len(self.truth):
            self.done = 0
            return {"text": ""}
        came = self.truth[self.done]
        self.done += 1
        return change(end, end, came)


@dataclass
class Storm:
    """What was asked and not answered yet, and what came."""

    wire: Process
    documents: list[Typed]
    pending: dict[int, tuple[Typed, int]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    shown: int = 0
    pushed: int = 0
    nothing: int = 0

    def ask(self, key: int, document: Typed, rng: random.Random) -> None:
        line, column = document.cursor(document.text)
        document.asked[document.version] = document.text
        self.pending[key] = (document, document.version)
        self.wire.send(request(key, INSTANT, asking(document.uri, line, column, 1 if rng.random() < 0.02 else 2)))

    def take(self) -> None:
        """One message of the server."""
        message = self.wire.receive()
        assert message is not None
        if "method" in message:
            self._notified(message)
            return
        document, version = self.pending.pop(message["id"])
        if error := message.get("error"):
            assert error["code"] == CANCELLED, error
            assert message["id"] in self.cancelled
            return
        if message["result"] is None:
            self.nothing += 1
            document.known = max(document.known, version)
            return
        assert version >= document.known, "answered for a version when a newer one was answered for already"
        document.known = version
        for item in message["result"]["items"]:
            self._check(document, version, item)
            self.shown += 1

    def _notified(self, message: dict[str, Any]) -> None:
        if message["method"] != "localdflash/didUpdateInlineCompletion":
            assert message["method"] in ("didChangeStatus", "window/logMessage"), message
            return
        params = message["params"]
        about = params["textDocument"]
        (document,) = (one for one in self.documents if one.uri == about["uri"])
        for item in params["items"]:
            self._check(document, about["version"], item)
            self.pushed += 1

    def _check(self, document: Typed, version: int, item: dict[str, Any]) -> None:
        """The item belongs to the text of that version: to its cursor, and to what comes there."""
        text = document.asked[version]
        line, column = document.cursor(text)
        assert item["range"] == {"start": {"line": line, "character": 0}, "end": {"line": line, "character": column}}
        typed = text.rpartition("\n")[2]
        assert item["insertText"].startswith(typed)
        came = item["insertText"][len(typed) :]
        assert came.strip()
        assert document.truth.startswith(text), f"{came!r} offered after {typed!r}, which nobody types"
        assert document.truth[len(text) :].startswith(came), f"{came!r} offered after {typed!r}"

    def drain(self, left: int) -> None:
        while len(self.pending) > left:
            self.take()


@pytest.fixture
def storm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storm]:
    folder = Path(tempfile.mkdtemp(prefix="ldf", dir="/tmp"))
    monkeypatch.setenv("LOCALDFLASH_HOME", str(folder))
    documents = [Typed(f"file:///project/storm_{seed}.py", source(seed)) for seed in range(DOCUMENTS)]
    files = [folder / f"{seed}.py" for seed in range(DOCUMENTS)]
    for file, document in zip(files, documents, strict=True):
        file.write_text(document.truth, "utf-8")
    engine = subprocess.Popen([*instant_engine.COMMAND, *map(str, files), "--delay", "4"])
    try:
        with serving() as wire:
            daemons.until(daemons.is_ready)
            yield Storm(wire, documents)
    finally:
        engine.kill()
        engine.wait()
        shutil.rmtree(folder)


def oracle() -> dict[str, Any]:
    with daemons.client() as client:
        return dict(client.get("/oracle"))


@pytest.mark.timeout(300)
def test_10_000_keys(storm: Storm) -> None:
    rng, wire = random.Random(5), storm.wire
    wire.begin("utf-16", options={"push": True})
    process, resident = psutil.Process(wire.process.pid), 0
    for document in storm.documents:
        wire.send(notification("textDocument/didOpen", opening(document.uri, "")))
    document = storm.documents[0]
    for key in range(KEYS):
        if rng.random() < 0.01:
            document = rng.choice(storm.documents)
        step = document.key(rng)
        wire.send(notification("textDocument/didChange", changing(document.uri, document.version, step)))
        if rng.random() < 0.7:
            storm.ask(key, document, rng)
        if storm.pending and rng.random() < 0.15:
            victim = rng.choice(list(storm.pending))
            storm.cancelled.add(victim)
            wire.send(notification("$/cancelRequest", {"id": victim}))
        storm.drain(0 if rng.random() < 0.05 else PENDING)
        if key == KEYS // 4:
            resident = process.memory_info().rss
    storm.drain(0)
    seen = oracle()
    assert seen["most"] == 1
    assert storm.shown > 100
    assert process.memory_info().rss - resident < 40_000_000
    daemons.until(lambda: oracle()["live"] == 0, 10)
    before = sum(process.cpu_times()[:2])
    asked = len(oracle()["asked"])
    wire.check()
    assert sum(process.cpu_times()[:2]) - before < 2
    assert len(oracle()["asked"]) - asked <= 1
    assert wire.leave()[0] == 0


def test_nothing_is_generated_for_editors_that_are_gone(storm: Storm, tmp_path: Path) -> None:
    """Connections that come, ask and break off in the midst: the engine has nothing left to do."""
    path = Path(tempfile.mkdtemp(prefix="ldf", dir="/tmp")) / "lsp.sock"
    try:
        with serving("--socket", str(path)) as server:
            server.line()
            for i in range(30):
                with connected(str(path)) as wire:
                    wire.begin()
                    text = storm.documents[i % DOCUMENTS].truth[:400]
                    wire.send(notification("textDocument/didOpen", opening("file:///project/gone.py", text)))
                    line = text.count("\n")
                    where = asking("file:///project/gone.py", line, len(text.rpartition("\n")[2]))
                    wire.send(request(1, INSTANT, where))
                    if i % 3 == 0:
                        assert "result" in wire.answer(1)
            daemons.until(lambda: oracle()["live"] == 0, 10)
            assert oracle()["asked"]
            daemons.until(lambda: psutil.Process(server.process.pid).num_fds() < 20, 10)
            assert server.process.poll() is None
    finally:
        shutil.rmtree(path.parent)
