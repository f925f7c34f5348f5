import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import EngineGone, LocaldflashError, UsageError
from localdflash.lab.bench import typing, typing_picture, typing_replay
from localdflash.lab.bench.passages import TypedPassage, TypingJob, from_line
from localdflash.lab.bench.typing_replay import Manner, TypingReplay, run
from tests.lab.bench.scripted_server import program

WHOLE = "import os\n\n\ndef size(path):\n    found = os.stat(path)\n    return found.st_size\n\n\nprint(size('.'))\n"
JOB = from_line("size.py", WHOLE, 5, 60)
MANNER = Manner("neovim", 60, 0, 20.0)


class Daemon:
    """What the bench asks of the daemon."""

    def __init__(self, generated: int = 0) -> None:
        self.generated, self.looked, self.counted = generated, 0, list[str]()

    def get(self, _path: str) -> dict[str, Any]:
        return {"pair": "tiny", "requests": 3}

    def get_text(self, _path: str) -> str:
        if not self.generated:
            raise LocaldflashError("no such thing")
        self.looked += 1
        return f"# HELP\nlocaldflash_tokens_total {float(self.generated * self.looked)}\nlocaldflash_tokens_created 1\n"

    def post(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.counted.append(body["content"])
        return {"tokens": body["content"].split()}


Typed = Callable[..., TypingReplay]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typed:
    """Types a file through a scripted server."""

    def go(
        mode: str = "good", job: TypingJob = JOB, manner: Manner = MANNER, daemon: Daemon | None = None
    ) -> TypingReplay:
        monkeypatch.setattr(typing_replay, "PROGRAM", program(mode, WHOLE))
        return run([job], tmp_path / "work", daemon or Daemon(), manner, lambda _: None)  # type: ignore[arg-type]

    return go


@pytest.mark.system
def test_a_server_that_knows_what_comes_saves_most_keys(typed: Typed, tmp_path: Path) -> None:
    report = json.loads(json.dumps(typing.report(typed(), MANNER)))
    overall = report["overall"]
    assert overall["keystrokes_saved"] > 0.5
    assert overall["accepted"]["all"] == report["engine"]["tau"] >= 1
    assert (overall["stale"], overall["flicker"], overall["errors"]) == (0, 0, 0)
    assert overall["requests"] == overall["pressed"] == report["files"]["size.py"]["pressed"]
    assert report["ms"]["request_to_answer"]["p50"] > 0
    assert report["ms"]["request_to_first_line"]["p95"] <= report["ms"]["request_to_first_line"]["max"]
    assert (tmp_path / "work" / "size.py").read_text() == JOB.text


@pytest.mark.system
def test_faults_of_a_server_are_counted(typed: Typed) -> None:
    stale = typed("stale")
    assert stale.trace.stale > 5
    assert typing.saved(stale.files["size.py"]) == 0.0
    assert typed("flicker").trace.flicker >= 1
    wrong = typed("wrong")
    assert wrong.files["size.py"].pressed == wrong.files["size.py"].keys
    assert wrong.trace.rejected >= 5


@pytest.mark.system
def test_tokens_that_nobody_saw(typed: Typed) -> None:
    daemon = Daemon(generated=100)
    report = typing.report(typed(daemon=daemon), MANNER)
    assert report["engine"]["generated_tokens"] == 100
    assert report["engine"]["shown_tokens"] == len(" ".join(daemon.counted).split()) > 0
    assert report["overall"]["wasted_tokens"] == pytest.approx(1 - report["engine"]["shown_tokens"] / 100, abs=1e-3)
    assert typing.report(typed(), MANNER)["overall"]["wasted_tokens"] is None


@pytest.mark.system
@pytest.mark.parametrize(
    ("mode", "error"),
    [("dies", "ended: out of luck"), ("babbles", "is no LSP"), ("unable", "announces no inline completions")],
)
def test_a_server_that_fails_is_one_line(mode: str, error: str, typed: Typed) -> None:
    with pytest.raises(LocaldflashError, match=error) as raised:
        typed(mode)
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, EngineGone) or mode == "unable"


@pytest.mark.system
def test_the_keys_of_a_file_are_limited(typed: Typed) -> None:
    several = TypingJob(
        "a.py", "x\ny\n", (TypedPassage(0, 2, "ab\ncd\n"), TypedPassage(6, 2, "ef\n"), TypedPassage(9, 0, "gh"))
    )
    done = typed(job=several, manner=Manner("neovim", 8, 0, 20.0))
    assert done.files["a.py"].keys == 6 + 2


def test_any_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/one.py", "b/c/two.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(WHOLE)
    monkeypatch.chdir(tmp_path)
    jobs = typing.of_files(["a/one.py", "b/c/two.py:5"], MANNER)
    assert [job.name for job in jobs] == ["a/one.py", "b/c/two.py"]
    assert jobs[1].passages == JOB.passages
    for wrong in (["a/one.py", "./a/one.py:2"], ["missing.py"], ["a/one.py:99"], ["a"]):
        with pytest.raises(UsageError):
            typing.of_files(wrong, MANNER)


def test_the_held_out_files() -> None:
    jobs = typing.held_out(None, MANNER)
    assert len({job.name for job in jobs}) == typing.FILES == 20
    assert len(typing.held_out(3, MANNER)) == 3


@pytest.mark.system
def test_a_picture(typed: Typed, tmp_path: Path) -> None:
    done, name = typed(), "typing.svg"
    done.files["no $x^ \x1b.py"] = done.files["size.py"]
    typing_picture.check(tmp_path / name)
    typing_picture.draw(done, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b"<?xml")


def test_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        typing_picture.check(Path("a.jpg"))
    monkeypatch.setattr(typing_picture, "find_spec", lambda _: None)
    with pytest.raises(LocaldflashError, match="pip install"):
        typing_picture.check(Path("a.png"))
