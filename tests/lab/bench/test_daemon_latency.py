"""Latency of the daemon: the chat that runs next to completions."""

from collections.abc import Iterator
from typing import Any

import pytest

from localdflash.base.errors import ModelError
from localdflash.lab.bench import daemon_latency


class Refusing:
    """Client of a daemon that refuses the chat after some events."""

    def __init__(self, events: int) -> None:
        self.events = events

    def stream(self, _path: str, _body: object) -> Iterator[dict[str, Any]]:
        for _ in range(self.events):
            yield {"step": {"ms": 2.0}}
        raise ModelError("no chat template")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("events", [0, 3])
def test_an_error_of_the_chat_ends_the_benchmark(events: int) -> None:
    steps = list[float]()
    with (
        pytest.raises(ModelError, match="no chat template"),
        daemon_latency._streaming_chat(Refusing(events), steps),  # type: ignore[arg-type]
    ):
        pass
    assert len(steps) <= events
