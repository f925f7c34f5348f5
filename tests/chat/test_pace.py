"""Tokens a second by our own clock, of a server that tells none."""

from collections.abc import Sequence
from typing import Any

import pytest

from localdflash.chat import answer_events
from localdflash.chat.answer_events import MIN_PACE_SECONDS as LEAST
from localdflash.chat.answer_events import (
    AnswerReader,
    ArrivalRate,
    Chunk,
    ChunkChoice,
    ChunkDelta,
    ChunkTimings,
    Usage,
)
from localdflash.chat.sampling_settings import ChatSettings


def paced(*seconds: float) -> ArrivalRate:
    clock = iter(seconds)
    pace = ArrivalRate(lambda: next(clock))
    for _ in seconds:
        pace.arrived()
    return pace


@pytest.mark.parametrize(
    ("seconds", "tokens", "rate"),
    [
        ((10.0, 10.5, 12.0), 41, 20.0),
        ((10.0, 10.0 + LEAST), 2, 1 / LEAST),
        ((10.0, 10.0 + LEAST / 2), 100, None),
        ((10.0, 12.0), 1, None),
    ],
)
def test_the_pace_is_from_the_first_text_to_the_last(seconds: Sequence[float], tokens: int, rate: float | None) -> None:
    assert paced(*seconds).of(tokens) == (None if rate is None else pytest.approx(rate))


def read(monkeypatch: pytest.MonkeyPatch, usage: Usage | None, timings: ChunkTimings | None = None) -> dict[str, Any]:
    """The numbers of an answer of three texts, a second apart, of which the first are thoughts."""
    clock = iter((10.0, 11.0, 12.0))
    monkeypatch.setattr(answer_events, "ArrivalRate", lambda: ArrivalRate(lambda: next(clock)))
    answer = AnswerReader(ChatSettings(), 9.0)
    for delta in (ChunkDelta(reasoning_content="hm"), ChunkDelta("Hel"), ChunkDelta(""), ChunkDelta("lo")):
        answer.take(Chunk([ChunkChoice(delta)]))
    answer.take(Chunk([ChunkChoice(finish_reason="stop")], usage=usage, timings=timings))
    return answer.numbers(ours=False)


def test_what_a_server_tells_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ChunkTimings(predicted_n=21, predicted_per_second=77.0)
    assert read(monkeypatch, Usage(5, 21), told)["tokens_per_second"] == 77.0
    silent = ChunkTimings(predicted_n=21)
    assert read(monkeypatch, Usage(5, 21), silent)["tokens_per_second"] == 10.0


def test_without_a_count_nothing_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tokens_per_second" not in read(monkeypatch, None)
    assert "tokens_per_second" not in read(monkeypatch, Usage())
