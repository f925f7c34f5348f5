"""Comparison of drafting with the baseline: its requests and its numbers."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from localdflash.base.errors import EngineDisconnect, UsageError
from localdflash.chat.answerer import AnswerPiece, AnswerRestart, Done, ServerInfo
from localdflash.chat.drafting_comparison import DRAFT_ORDER, MAX_TOKENS, Comparison, compare_drafting
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.tui.screens.compare_screen import compare_text
from tests.chat.asking import QUESTION

CONVERSATION = [Message("user", "a"), Message("assistant", "b"), *QUESTION]


class TimedAnswerer:
    """Fake answerer whose answers have the given rates, without and with drafting."""

    is_localdflash = True

    def __init__(self, baseline: list[float], drafted: list[float], texts: Sequence[str] = ()) -> None:
        self.rates = {False: baseline, True: drafted}
        self.texts = list(texts) or ["same"] * 9
        self.requests: list[tuple[Sequence[Message], ChatSettings]] = []

    async def ready(self) -> ServerInfo:
        return ServerInfo("timed", 1000)

    async def answer(
        self, messages: Sequence[Message], settings: ChatSettings, *, system: str
    ) -> AsyncGenerator[AnswerPiece | AnswerRestart | Done, None]:
        self.requests.append((messages, settings))
        text, warm = self.texts.pop(0), len(self.requests) == 1
        yield AnswerPiece(text[:1])
        yield AnswerPiece(text[1:])
        rate = 0.0 if warm else self.rates[settings.draft].pop(0)
        tau = 2.5 if settings.draft else 1.0
        yield Done("length", {"tokens_per_second": rate, "tokens": 10, "tau": tau, "ttft_ms": rate / 2})


def run(answerer: Any) -> tuple[Comparison, list[Comparison]]:
    progress: list[Comparison] = []
    compare = compare_drafting(answerer, CONVERSATION, system="s", settings=ChatSettings(), say=progress.append)
    return asyncio.run(compare), progress


def test_comparison_interleaves_the_modes() -> None:
    answerer = TimedAnswerer([10.0, 20.0, 15.0, 15.0], [40.0, 60.0, 50.0, 50.0])
    result, progress = run(answerer)
    assert (
        [settings.draft for _, settings in answerer.requests]
        == [False, *DRAFT_ORDER]
        == [False, False, True, True, False, False, True, True, False]
    )
    assert [messages for messages, _ in answerer.requests] == [CONVERSATION] * 9
    assert len({settings.seed for _, settings in answerer.requests}) == 1
    assert [settings.max_tokens for _, settings in answerer.requests] == [1, *[MAX_TOKENS] * 8]
    assert (result.baseline.rate, result.drafting.rate) == (15.0, 50.0)
    assert result.ratio == pytest.approx(50 / 15)
    assert (result.baseline.tau, result.drafting.tau) == (1.0, 2.5)
    assert (result.baseline.ttft_ms, result.drafting.ttft_ms) == (7.5, 25.0)
    assert (len(result.baseline.rates), result.drafting.tokens, result.rounds) == (4, 40, 4)
    assert result.identical is True
    assert result.activity == ""
    assert progress[-1] is result
    assert [one.identical for one in progress] == [None] * 3 + [True] * 7
    assert [one.ratio for one in progress[:-1]] == [None] * 9
    assert all(one.activity for one in progress[:-1])


def test_overlapping_speeds_are_no_difference() -> None:
    result, _ = run(TimedAnswerer([10.0, 11.0, 10.0, 10.0], [12.0, 12.0, 12.0, 10.5]))
    assert (result.drafting.rate, result.ratio) == (12.0, 1.0)
    assert "No difference" in compare_text(result, 80).plain


def test_comparison_needs_the_localdflash_engine() -> None:
    answerer = TimedAnswerer([], [])
    answerer.is_localdflash = False
    with pytest.raises(UsageError, match="another server"):
        run(answerer)


@pytest.mark.parametrize(
    "end", [AnswerRestart(), Done("gone", {}, EngineDisconnect("it fell over")), Done("cancelled", {})]
)
def test_interrupted_answer_ends_the_comparison(end: AnswerRestart | Done, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        yield AnswerPiece("x")
        yield end

    answerer = TimedAnswerer([], [])
    monkeypatch.setattr(answerer, "answer", answer)
    with pytest.raises(EngineDisconnect):
        run(answerer)
