"""`localdflash bench`: the default pair, and progress lines."""

from collections.abc import Callable
from typing import Any

import pytest

from localdflash.lab.bench import bench_run
from localdflash.lab.cli import bench_output, bench_speed
from localdflash.models.registry import defaults


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


def test_items_that_are_counted_have_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    with bench_output.BenchProgress() as progress:
        progress.count(1, 20, "tasks")
        progress.count(2, 20, "tasks")
    assert capsys.readouterr().err.startswith("20 tasks: about 0 seconds")
