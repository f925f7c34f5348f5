"""The comparison of drafting with the baseline: its requests, its numbers, and that it can be cancelled."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from localdflash.base.errors import EngineDisconnect, UsageError
from localdflash.chat.answerer import AnswerPiece, AnswerRestart, Done, ServerInfo
from localdflash.chat.drafting_comparison import DRAFT_ORDER, MAX_TOKENS, Comparison, compare_drafting
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from tests.chat.asking import QUESTION

TALK = [Message("user", "a"), Message("assistant", "b"), *QUESTION, Message("assistant", "an answer")]


class Timed:
    """An engine whose answers have these rates: plain ones, drafted ones."""

    is_localdflash = True

    def __init__(self, plain: list[float], drafted: list[float], texts: Sequence[str] = ()) -> None:
        self.rates = {False: plain, True: drafted}
        self.texts = list(texts) or ["same"] * 5
        self.asked: list[tuple[Sequence[Message], ChatSettings]] = []

    async def ready(self) -> ServerInfo:
        return ServerInfo("timed", 1000)

    async def answer(
        self, messages: Sequence[Message], settings: ChatSettings, *, system: str
    ) -> AsyncGenerator[AnswerPiece | AnswerRestart | Done, None]:
        self.asked.append((messages, settings))
        text, warm = self.texts.pop(0), len(self.asked) == 1
        yield AnswerPiece(text[:1])
        yield AnswerPiece(text[1:])
        rate = 0.0 if warm else self.rates[settings.draft].pop(0)
        tau = 2.5 if settings.draft else 1.0
        yield Done("length", {"tokens_per_second": rate, "tokens": 10, "tau": tau, "ttft_ms": rate / 2})


def run(answerer: Any, talk: Sequence[Message] = TALK, **settings: Any) -> tuple[Comparison, list[Comparison]]:
    said: list[Comparison] = []
    return asyncio.run(
        compare_drafting(answerer, talk, system="s", settings=ChatSettings(**settings), say=said.append)
    ), said


def test_each_way_goes_first_and_last() -> None:
    answerer = Timed([10.0, 20.0], [40.0, 60.0])
    found, said = run(answerer)
    assert (
        [settings.draft for _, settings in answerer.asked] == [False, *DRAFT_ORDER] == [False, False, True, True, False]
    )
    assert [messages for messages, _ in answerer.asked] == [TALK[:3]] * 5
    assert len({settings.seed for _, settings in answerer.asked}) == 1
    assert [settings.max_tokens for _, settings in answerer.asked] == [1, *[MAX_TOKENS] * 4]
    assert (found.plain.rate, found.drafting.rate) == (15.0, 50.0)
    assert found.ratio == pytest.approx(50 / 15)
    assert (found.plain.tau, found.drafting.tau) == (1.0, 2.5)
    assert (found.plain.ttft_ms, found.drafting.ttft_ms) == (7.5, 25.0)
    assert (found.plain.rounds, found.drafting.tokens, found.rounds) == (2, 20, 2)
    assert found.identical is True
    assert found.running == ""
    assert said[-1] is found
    assert [one.identical for one in said] == [None, None, None, True, True, True]
    assert all(one.running for one in said[:-1])


def test_there_must_be_a_question() -> None:
    with pytest.raises(UsageError, match="nothing was asked"):
        run(Timed([], []), [Message("assistant", "x")])


def test_another_server_cannot_compare() -> None:
    answerer = Timed([], [])
    answerer.is_localdflash = False
    with pytest.raises(UsageError, match="another server"):
        run(answerer)


@pytest.mark.parametrize(
    "end", [AnswerRestart(), Done("gone", {}, EngineDisconnect("it fell over")), Done("cancelled", {})]
)
def test_what_disturbs_a_measurement_ends_it(end: AnswerRestart | Done, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        yield AnswerPiece("x")
        yield end

    answerer = Timed([], [])
    monkeypatch.setattr(answerer, "answer", answer)
    with pytest.raises(EngineDisconnect):
        run(answerer)
