"""Replays that end early."""

from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError
from localdflash.lab.bench import typing, typing_replay
from localdflash.lab.bench.typing_replay import TypingOptions, TypingReplay
from localdflash.lab.bench.typist import TypedKeys
from localdflash.lab.cli import bench_typing


class LostDaemon:
    """Client of a daemon that ends while files are typed."""

    ended = False

    def get(self, _: str) -> dict[str, Any]:
        if self.ended:
            raise LocaldflashError("the daemon has ended")
        return {"requests": 0, "options": {"pair": "tiny"}}

    def get_text(self, _: str) -> str:
        return ""


def test_a_daemon_that_ends_leaves_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client, replay, options = LostDaemon(), TypingReplay(), TypingOptions("neovim", 10, 0, 1.0)

    async def type_all(*_: object) -> None:
        replay.files["a.py"] = TypedKeys()
        replay.engine = {"messages": []}
        client.ended = True

    monkeypatch.setattr(typing_replay, "type_all", type_all)
    with pytest.raises(LocaldflashError, match="the daemon has ended"):
        typing_replay.run((), tmp_path, client, options, replay, lambda *_: None)  # type: ignore[arg-type]
    bench_typing.show(typing.report(replay, options))
    assert "a.py" in capsys.readouterr().out
