"""Events of an answer: text by text, rates by the client's clock, and an answer that is requested again."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.chat.answer_events import MIN_PACE_SECONDS as LEAST
from localdflash.chat.answer_events import AnswerReader, Chunk, ChunkChoice, ChunkDelta, ChunkTimings, Replay, Usage
from localdflash.chat.messages import StepRecord
from localdflash.chat.sampling_settings import ChatSettings


def read(
    monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float], usage: Usage | None, timings: ChunkTimings | None = None
) -> dict[str, Any]:
    """Return the numbers of an answer whose texts, the first a thought, arrive at these times."""
    clock = iter(seconds)
    monkeypatch.setattr("localdflash.chat.answer_events.time.perf_counter", lambda: next(clock))
    answer = AnswerReader(ChatSettings(), 9.0)
    for delta in (ChunkDelta(reasoning_content="hm"), ChunkDelta(""), *(ChunkDelta("lo") for _ in seconds[1:])):
        answer.take(Chunk([ChunkChoice(delta)]))
    answer.take(Chunk([ChunkChoice(finish_reason="stop")], usage=usage, timings=timings))
    return answer.numbers(is_localdflash=False)


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


TEXT = st.text("ab\né😋", max_size=12)


def steps(parts: list[str]) -> list[tuple[str, StepRecord | None]]:
    """Each part as a step whose tokens are its characters."""
    told: list[tuple[str, StepRecord | None]] = []
    for part in parts:
        sizes = tuple(len(character.encode()) for character in part)
        told.append((part, StepRecord("dflash", len(sizes), max(len(sizes) - 1, 0), sizes, 1.0)))
    return told


class Reader:
    """Text on a screen."""

    def __init__(self) -> None:
        self.replay, self.text, self.sizes, self.anew = Replay(), "", 0, 0

    def take(self, found: tuple[bool, list[tuple[str, StepRecord | None]]]) -> None:
        anew, told = found
        if anew:
            self.text, self.sizes, self.anew = "", 0, self.anew + 1
        for text, step in told:
            self.text += text
            assert step
            assert step.accepted <= min(step.drafted, len(step.sizes))
            self.sizes += sum(step.sizes)

    def read(self, parts: list[str]) -> None:
        for text, step in steps(parts):
            self.take(self.replay.push(text, step))


@given(tellings=st.lists(st.lists(TEXT, max_size=6), min_size=1, max_size=4))
def test_a_reader_has_what_was_told_last(tellings: list[list[str]]) -> None:
    reader = Reader()
    for number, parts in enumerate(tellings):
        if number:
            reader.replay.begin_again()
        reader.read(parts)
    reader.take(reader.replay.finish())
    assert reader.text == reader.replay.text == "".join(tellings[-1])
    assert reader.sizes == len(reader.text.encode())
