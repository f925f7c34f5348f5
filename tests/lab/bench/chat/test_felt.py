"""What a user waits for, through a real daemon with a tiny pair; and through a client that counts words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localdflash.lab.bench.chat import felt
from localdflash.server.engine_spec import EngineSpec
from tests.support import daemons


class WordClient:
    """Counts words as tokens, and remembers the conversations that it was asked to go on with."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, str]]] = []

    def post(self, target: str, body: Any) -> dict[str, int]:
        assert (target, body["count"]) == ("/apply-template", True)
        return {"tokens": 30 + sum(len(message["content"].split()) for message in body["messages"])}

    def stream(self, target: str, body: Any) -> Iterator[dict[str, Any]]:
        assert (target, body["stream"], body["temperature"]) == ("/v1/chat/completions", True, 0)
        self.asked.append(body["messages"])
        yield {"choices": [{"delta": {"role": "assistant"}}]}
        yield {"choices": [{"delta": {"content": "word"}}]}
        pytest.fail("it read on after the first text")


def test_questions_of_a_hundred_tokens_follow_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = WordClient()
    tokens, times = felt._warm(client, 3, lambda: None)
    assert tokens == 100
    assert len(times) == 3
    assert len(client.asked) == 4  # the first one warms up
    for conversation in client.asked:
        assert [message["role"] for message in conversation] == ["user", "assistant", "user"]
        assert len(conversation[-1]["content"].split()) == 100
    assert len({conversation[-1]["content"].split()[0] for conversation in client.asked}) == 4  # new from its start on


@pytest.mark.system
def test_a_real_daemon_is_started_asked_and_ended(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    with daemons.short_home(monkeypatch) as folder:
        wanted = EngineSpec({"pair": str(tiny_pair / "target.gguf"), "backend": "llama.cpp", "threads": 1})
        found = felt.measure(wanted, 2, 3, lambda: moved.append(1))
        assert daemons.daemons(folder) == []
    assert found["cold_start_ms"]["p50"] > found["warm_ms"]["p50"] > 0
    assert found["question_tokens"] <= 100
    assert len(moved) == 5
