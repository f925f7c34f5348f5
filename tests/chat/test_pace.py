"""Tokens per second by the client's clock, for a server that reports none."""

from collections.abc import Sequence
from typing import Any

import pytest

from localdflash.chat import answer_events
from localdflash.chat.answer_events import MIN_PACE_SECONDS as LEAST
from localdflash.chat.answer_events import AnswerReader, Chunk, ChunkChoice, ChunkDelta, ChunkTimings, Usage
from localdflash.chat.sampling_settings import ChatSettings


def read(
    monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float], usage: Usage | None, timings: ChunkTimings | None = None
) -> dict[str, Any]:
    """Return the numbers of an answer whose texts, the first a thought, arrive at these times."""
    clock = iter(seconds)
    monkeypatch.setattr(answer_events.time, "perf_counter", lambda: next(clock))
    answer = AnswerReader(ChatSettings(), 9.0)
    for delta in (ChunkDelta(reasoning_content="hm"), ChunkDelta(""), *(ChunkDelta("lo") for _ in seconds[1:])):
        answer.take(Chunk([ChunkChoice(delta)]))
    answer.take(Chunk([ChunkChoice(finish_reason="stop")], usage=usage, timings=timings))
    return answer.numbers(ours=False)


@pytest.mark.parametrize(
    ("seconds", "tokens", "rate"),
    [
        ((10.0, 10.5, 12.0), 41, 20.0),
        ((10.0, 10.0 + LEAST), 2, 1 / LEAST),
        ((10.0, 10.0 + LEAST / 2), 100, None),
        ((10.0, 12.0), 1, None),
        ((10.0, 12.0), None, None),
    ],
)
def test_the_pace_is_from_the_first_text_to_the_last(
    monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float], tokens: int | None, rate: float | None
) -> None:
    found = read(monkeypatch, seconds, Usage(5, tokens)).get("tokens_per_second")
    assert found == (None if rate is None else pytest.approx(rate, rel=0.01))


def test_what_a_server_tells_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ChunkTimings(predicted_n=21, predicted_per_second=77.0)
    assert read(monkeypatch, (10.0, 12.0), Usage(5, 21), told)["tokens_per_second"] == 77.0
