"""`localdflash complete`: its output, Ctrl-C, and the errors for bad values."""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.cli import complete_command
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Step
from localdflash.server import private
from tests.cli.conftest import CODE, FINISHES


def test_stdout_is_the_insertion_or_json_with_the_statistics(file: Path, complete: Callable[..., Any]) -> None:
    plain = complete(f"{file}:3:5", "--max-tokens", 24)
    assert (plain.code, plain.err) == (0, "")
    assert plain.out
    told = json.loads(complete(f"{file}:3:5", "--max-tokens", 24, "--json").out)
    assert told.keys() == {
        *("insertion", "finish", "tokens", "steps", "tau", "drafted", "accepted", "accept_by_slot"),
        *("steps_by_drafter", "ms", "tokens_per_second"),
    }
    assert told["insertion"] == plain.out
    assert told["finish"] in FINISHES
    assert 1 <= told["tokens"] <= 24
    assert told["steps"] + told["accepted"] == told["tokens"]
    assert sum(told["steps_by_drafter"].values()) == told["steps"]


def test_line_and_seed(file: Path, complete: Callable[..., Any]) -> None:
    line, whole = (complete(f"{file}:3:5", "--max-tokens", 90, *more).out for more in (["--line"], []))
    assert line == whole.partition("\n")[0].rstrip()
    outs = [complete(f"{file}:3:5", "--max-tokens", 30, "--temperature", 1.5, "--seed", seed).out for seed in (1, 1, 2)]
    assert outs[0] == outs[1] != outs[2]


@pytest.mark.usefixtures("drafting")
@pytest.mark.parametrize(
    ("place", "sampling"),
    [("3:5", ("--temperature", "0.9", "--seed", "7")), ("5:7", ("--repetition-penalty", "1.3"))],
)
def test_drafting_changes_nothing(
    place: str, sampling: tuple[str, ...], file: Path, complete: Callable[..., Any]
) -> None:
    arguments = (f"{file}:{place}", "--max-tokens", 60, "--json", *sampling)
    drafted, plain = json.loads(complete(*arguments).out), json.loads(complete(*arguments, "--no-draft").out)
    assert drafted["insertion"] == plain["insertion"]
    assert drafted["tokens"] == plain["tokens"]
    assert plain["drafted"] == 0
    assert plain["steps"] == plain["tokens"]


def test_carriage_returns_are_kept_and_change_nothing_else(
    file: Path, tmp_path: Path, complete: Callable[..., Any]
) -> None:
    other = tmp_path / "windows.py"
    other.write_bytes(CODE.replace("\n", "\r\n").encode())
    texts = []
    for seed in (0, 9):
        arguments = ("--max-tokens", 90, "--temperature", 2, "--seed", seed)
        unix, windows = (complete(f"{path}:3:5", *arguments).out for path in (file, other))
        assert windows == unix.replace("\n", "\r\n")
        texts.append(unix)
    assert "\n" in "".join(texts)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--temperature", "nan", "temperature"),
        ("--top-p", "0", "top_p"),
        ("--seed", "-1", "seed"),
        ("--max-tokens", "0", "--max-tokens"),
        ("--backend", "rocm", "--backend"),
        ("--context", "7", "context of 7 tokens"),
    ],
)
def test_bad_values(
    option: str, value: str, said: str, file: Path, fails: Callable[..., str], tiny: tuple[str, ...]
) -> None:
    assert said in fails(2, "complete", "--no-daemon", f"{file}:3:5", *tiny, option, value)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_stops_a_completion(file: Path, complete: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    original, steps = HostPair.step, 0

    def step(self: HostPair, *arguments: Any) -> Step:
        nonlocal steps
        steps += 1
        if steps == 18:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.02)  # the command reads what comes meanwhile
        return original(self, *arguments)

    file.write_text("def area(width, height):\n    \n")
    arguments = (f"{file}:2:5", "--no-draft", "--max-tokens", 60)
    whole = complete(*arguments).out
    monkeypatch.setattr(HostPair, "step", step)
    stopped = complete(*arguments)
    assert stopped.code == 130
    assert whole.startswith(stopped.out.rstrip("\ufffd"))
    assert len(stopped.out) < len(whole)
    steps = 0
    told = complete(*arguments, "--json")
    assert (told.code, json.loads(told.out)["finish"]) == (130, "cancelled")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("where", ["--no-daemon", "--seed=1"])
def test_ctrl_c_ends_loading(where: str, file: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        loaded.append(True)

    monkeypatch.setattr(private, "start", load)
    monkeypatch.setattr(complete_command, "connect", load)
    done = run("complete", where, f"{file}:3:5")
    assert (done.code, done.out, loaded) == (130, "", [])
