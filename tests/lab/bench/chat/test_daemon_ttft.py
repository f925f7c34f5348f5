"""Time to first token through a real daemon with a tiny pair."""

from pathlib import Path

import pytest

from localdflash.lab.bench.chat import daemon_ttft
from localdflash.server.engine_spec import EngineSpec
from tests.support import daemons


@pytest.mark.system
def test_a_private_daemon_is_started_measured_and_stopped(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    with daemons.short_home(monkeypatch) as folder:
        spec = EngineSpec({"pair": str(tiny_pair / "target.gguf"), "backend": "llama.cpp", "threads": 1})
        found = daemon_ttft.measure(spec, 2, 3, lambda: moved.append(1))
        assert daemons.daemons(folder) == []
    assert found["cold_start_ms"]["p50"] > found["warm_ms"]["p50"] > 0
    assert found["question_tokens"] <= 100
    assert len(moved) == 5
