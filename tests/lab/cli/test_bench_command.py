"""`localdflash bench`: its subcommands, the flags that came before them, the default pair, and progress lines."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from localdflash.lab.bench import bench_run
from localdflash.lab.cli import bench_output, bench_speed, progress_line
from localdflash.lab.cli.bench_command import OLD_FLAGS, SUBCOMMANDS, translate_flags
from localdflash.models.registry import defaults


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "speed"),
        ("--limit 1 --json a.json", "speed --limit 1 --json a.json"),
        ("--server --limit 3", "server --limit 3"),
        ("a.py b.py:3 --typing --keys 80", "typing a.py b.py:3 --keys 80"),
        ("--limit 3 --infill tasks.jsonl --threads 1", "infill --limit 3 --threads 1 tasks.jsonl"),
        ("--against a.gguf --pair x --against=b.gguf", "drafters --pair x a.gguf b.gguf"),
        ("spede", "spede"),
    ],
)
def test_arguments_without_a_subcommand(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert translate_flags(old.split()) == new.split()
    notices = capsys.readouterr().err.splitlines()
    flagged = any(word.partition("=")[0] in OLD_FLAGS for word in old.split())
    assert len(notices) == flagged
    assert all(f"`localdflash bench {new.split(maxsplit=1)[0]}`" in line for line in notices)


def test_every_subcommand_has_only_its_own_options(run: Callable[..., Any]) -> None:
    own = {
        "speed": {"--repeats", "--suite", "--picture"},
        "typing": {"--keys", "--as", "--commit", "--seed", "--picture"},
    }
    own |= {"drafters": {"--repeats", "--suite"}}
    for name in SUBCOMMANDS:
        shown = set(re.findall(r"--[a-z]+", run("bench", name, "--help").out))
        assert {"--limit", "--json", "--pair"} <= shown
        others = {option for options in own.values() for option in options}
        assert shown & others == own.get(name, set())


def test_the_default_pair_is_the_one_of_the_chat(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def measure(options: Any, *_: Any) -> None:
        asked.append(options.pair)
        raise KeyboardInterrupt

    monkeypatch.setattr(defaults, "chat_pair", lambda _config: "some-chat")
    monkeypatch.setattr(bench_speed, "chats", lambda _pair, _suite: False)
    monkeypatch.setattr(bench_run, "run", measure)
    assert [run("bench").code, run("bench", "--pair", "embedded").code] == [130, 130]
    assert asked == ["some-chat", "embedded"]


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_output, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(progress_line, "EVERY", 0.05)
    with bench_output.BenchProgress() as progress:
        progress.plan(40.0, "7 prompts: 40 seconds at most")
        progress.done(10.0, "talk/00")
        time.sleep(0.4)  # one long step
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "7 prompts: 40 seconds at most"
    assert len([line for line in lines if line.startswith("[#####               ] 0 s, about 30 s left: talk/00")]) >= 2
    assert "\r" not in "".join(lines)


def test_items_that_are_counted_have_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    with bench_output.BenchProgress() as progress:
        progress.count(1, 20, "tasks")
        progress.count(2, 20, "tasks")
    assert capsys.readouterr().err.startswith("20 tasks: about 0 seconds")
