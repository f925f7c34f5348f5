"""Events of a streamed answer: its text, its rate by the client's clock, and repeated requests."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.chat.answer_events import (
    MIN_RATE_SECONDS,
    AnswerReader,
    Chunk,
    ChunkChoice,
    ChunkDelta,
    ChunkTimings,
    Replay,
    Usage,
    decode_chunk,
)
from localdflash.chat.messages import StepRecord
from localdflash.chat.sampling_settings import ChatSettings


def read(
    monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float], usage: Usage | None, timings: ChunkTimings | None = None
) -> dict[str, Any]:
    """Return the statistics of an answer whose texts, first a thought, arrive at these times."""
    clock = iter(seconds)
    monkeypatch.setattr("localdflash.chat.answer_events.time.perf_counter", lambda: next(clock))
    answer = AnswerReader(ChatSettings(), 9.0)
    for delta in (ChunkDelta(reasoning_content="hm"), ChunkDelta(""), *(ChunkDelta("lo") for _ in seconds[1:])):
        answer.add_chunk(Chunk([ChunkChoice(delta)]))
    answer.add_chunk(Chunk([ChunkChoice(finish_reason="stop")], usage=usage, timings=timings))
    return answer.numbers(is_localdflash=False)


@pytest.mark.parametrize(
    ("seconds", "tokens", "rate"),
    [
        ((10.0, 10.5, 12.0), 41, 20.0),
        ((10.0, 10.0 + MIN_RATE_SECONDS), 2, 1 / MIN_RATE_SECONDS),
        ((10.0, 10.0 + MIN_RATE_SECONDS / 2), 100, None),
        ((10.0, 12.0), 1, None),
        ((10.0, 12.0), None, None),
    ],
)
def test_rate_is_measured_from_first_to_last_text(
    monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float], tokens: int | None, rate: float | None
) -> None:
    found = read(monkeypatch, seconds, Usage(5, tokens)).get("tokens_per_second")
    assert found == (None if rate is None else pytest.approx(rate, rel=0.01))


def test_rate_reported_by_the_server_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = ChunkTimings(predicted_n=21, predicted_per_second=77.0)
    assert read(monkeypatch, (10.0, 12.0), Usage(5, 21), timings)["tokens_per_second"] == 77.0


def test_acceptance_of_vllm_is_reported() -> None:
    answer = AnswerReader(ChatSettings(), 9.0)
    reported = b"""{"num_spec_steps": 10, "num_draft_tokens": 40, "num_accepted_draft_tokens": 21,
        "num_spec_tokens": 4, "mean_acceptance_length": 3.1, "acceptance_histogram": {"2": 9, "3": 1}}"""
    for metrics in (b'"of another kind"', b'{"mean_itl_ms": 9.1}', b'{"speculative_decoding": %b}' % reported, b"null"):
        answer.add_chunk(decode_chunk(b'{"choices": [], "metrics": %b}' % metrics))
    numbers = answer.numbers(is_localdflash=False)
    assert numbers == {"steps": 10, "tau": 3.1, "drafted": 40, "accepted": 21}


TEXT = st.text("ab\né😋", max_size=12)


def steps(parts: list[str]) -> list[tuple[str, StepRecord | None]]:
    """Return each part with a step whose tokens are its characters."""
    steps: list[tuple[str, StepRecord | None]] = []
    for part in parts:
        sizes = tuple(len(character.encode()) for character in part)
        steps.append((part, StepRecord("dflash", len(sizes), max(len(sizes) - 1, 0), sizes, 1.0)))
    return steps


class Screen:
    """Shown text of an answer that may restart."""

    def __init__(self) -> None:
        self.replay, self.text, self.sizes, self.restarts = Replay(), "", 0, 0

    def show(self, found: tuple[bool, list[tuple[str, StepRecord | None]]]) -> None:
        differs, parts = found
        if differs:
            self.text, self.sizes, self.restarts = "", 0, self.restarts + 1
        for text, step in parts:
            self.text += text
            assert step
            assert step.accepted <= min(step.drafted, len(step.sizes))
            self.sizes += sum(step.sizes)

    def read(self, parts: list[str]) -> None:
        for text, step in steps(parts):
            self.show(self.replay.push(text, step))


@given(answers=st.lists(st.lists(TEXT, max_size=6), min_size=1, max_size=4))
def test_replay_shows_the_last_answer_once(answers: list[list[str]]) -> None:
    screen = Screen()
    for number, parts in enumerate(answers):
        if number:
            screen.replay.begin_again()
        screen.read(parts)
    screen.show(screen.replay.finish())
    assert screen.text == screen.replay.text == "".join(answers[-1])
    assert screen.sizes == len(screen.text.encode())
