"""The comparison with llama-server, against a program that speaks as it does and takes the times it is told."""

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localdflash.lab.scripts.peers import compare_peers
from localdflash.lab.scripts.peers.compare_peers import OURS
from localdflash.lab.scripts.peers.peer_llama_server import LlamaServer
from localdflash.lab.scripts.peers.sides import PeerAnswer, PeerQuestion, ServerSide, questions
from localdflash.models.load_options import Options
from tests.support import daemons

SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

options = dict(zip(sys.argv[1:], sys.argv[2:]))
drafts = int(options.get("--spec-draft-n-max", 0))
open(r"{log}", "a").write(json.dumps(sys.argv[1:]) + "\\n")


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.say({{"status": "ok"}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        open(r"{log}", "a").write(json.dumps(asked) + "\\n")
        count = asked["n_predict"]
        timings = {{"predicted_n": count, "predicted_ms": (count - 1) * (5.0 if drafts else 10.0)}}
        if drafts:
            timings |= {{"draft_n": count, "draft_n_accepted": (count - 1) // 2}}
        self.say({{"content": "x" * count, "tokens": [1] * count, "timings": timings}})

    def say(self, body):
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


HTTPServer(("127.0.0.1", int(options["--port"])), Answers).serve_forever()
"""


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A program that answers as llama-server; `server.log` has its arguments and what it was asked."""
    program = tmp_path / "llama-server"
    program.write_text(SERVER.format(python=sys.executable, log=tmp_path / "server.log"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def said(server: Path) -> Any:
    def lines() -> list[Any]:
        return [json.loads(line) for line in server.with_name("server.log").read_text().splitlines()]

    return lines


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with daemons.short_home(monkeypatch) as folder:
        yield folder


class Told:
    """A side that answers a text in so many verifies of ten milliseconds, and remembers when it was asked."""

    def __init__(self, name: str, text: str, verifies: int, order: list[str]) -> None:
        self._name, self._text, self._verifies, self._order = name, text, verifies, order

    def ask(self, question: Any, max_tokens: int) -> Any:
        self._order.append(self._name)
        return PeerAnswer(self._text, max_tokens, self._verifies * 10.0, self._verifies)


def question(category: str, tokens: int = 8) -> Any:
    return PeerQuestion(category, [1, 2, 3], tokens)


def test_sides_take_turns_and_are_compared_by_category() -> None:
    order: list[str] = []
    texts = {OURS: ("a", 2), f"{OURS} plain": ("a", 8), "peer plain": ("a", 8), "peer n": ("b", 4)}
    sides = {name: Told(name, text, verifies, order) for name, (text, verifies) in texts.items()}
    found = compare_peers.compare(sides, [question("edit"), question("talk", 4), question("edit")])
    names = [*sides]  # the first of each is not counted
    assert order == [*names, *names, *names[1:], names[0], *names[2:], *names[:2]]
    assert found["prompts"] == 3
    ours, _, plain, other = (found["sides"][name] for name in sides)
    assert ours["tok_s"] == pytest.approx(20 / 0.06, rel=1e-3)
    assert (ours["tau"], plain["tau"], other["tau"]) == (3.333, 0.833, 1.667)
    assert (plain["ours_over_this"], other["ours_over_this"]) == (4.0, 2.0)
    assert plain["ours_over_this_by_category"] == {"edit": 4.0, "talk": 4.0}
    assert (ours["same_text"], plain["same_text"], other["same_text"]) == ("3/3", "3/3", "0/3")
    assert (ours["same_as_own_plain"], other["same_as_own_plain"]) == ("3/3", "0/3")


@pytest.mark.system
def test_a_drafting_server_is_asked_as_a_plain_one(server: Path, said: Any, tmp_path: Path) -> None:
    target, drafter = tmp_path / "target.gguf", tmp_path / "drafter.gguf"
    asked = PeerQuestion("json", [5, 6], 9, {"type": "object"})
    with LlamaServer(server, target, None, 2) as plain, LlamaServer(server, target, drafter, 2, 7) as drafting:
        answers = [ServerSide(one).ask(asked, 9) for one in (plain, drafting)]
    assert answers == [("x" * 9, 8, 80.0, 8), ("x" * 9, 8, 40.0, 4)]  # 8 tokens after the first, 4 of them drafted
    first, second, *requests = said()
    assert "--spec-type" not in first
    assert second[second.index("--spec-type") + 1 :][:5] == [
        *("draft-dflash", "--spec-draft-model", str(drafter), "--spec-draft-n-max", "7")
    ]
    for option in ("--model", "--threads"):
        assert first[first.index(option) + 1] == second[second.index(option) + 1]
    assert requests[0] == requests[1]
    assert requests[0]["prompt"] == [5, 6]
    assert (requests[0]["temperature"], requests[0]["cache_prompt"]) == (0, False)
    assert requests[0]["json_schema"] == {"type": "object"}


@pytest.mark.nightly
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("suite", ["chat", "code"])
def test_our_daemon_gets_the_same_questions(suite: str, server: Path, said: Any, tiny_pair: Path) -> None:
    options = Options(str(tiny_pair / "target.gguf"), "llama.cpp", 1)
    asked = questions(options, suite, 1)
    found = compare_peers.compare_drafting(server, options, suite, [3], 1)
    assert found["sides"].keys() == {OURS, f"{OURS} plain", "llama-server plain", "llama-server n_max 3"}
    assert found["prompts"] == len(asked) == (7 if suite == "chat" else 5)
    assert found["sides"][f"{OURS} plain"]["same_text"] == f"{len(asked)}/{len(asked)}"
    assert found["sides"][f"{OURS} plain"]["tau"] == 1.0
    assert found["sides"]["llama-server plain"]["tok_s"] == 100.0
    prompts = [line["prompt"] for line in said() if isinstance(line, dict)]
    assert sorted(prompts) == sorted([*(list(q.ids) for q in asked), list(asked[0].ids)] * 2)
