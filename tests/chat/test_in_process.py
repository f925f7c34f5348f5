"""A chat with a pair that this process has loaded: one answer after the other, stopped, too long, drafted or not."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import ContextOverflow
from localdflash.chat.in_process import InProcess
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.chat.talk import Talk
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.answers.answer import Answer
from localdflash.server.answers.conversation import prepare
from localdflash.text.chat_template import TemplateMessage

Chat = Talk[InProcess]


@pytest.fixture(scope="module")
def loaded(tiny_pair: Path) -> Iterator[LoadedPair]:
    with LoadedPair(Options(str(tiny_pair / "target.gguf"), threads=1, context=256, backend="llama.cpp")) as loaded:
        yield loaded


def talking(
    loaded: LoadedPair,
    work: Callable[[Chat], Coroutine[Any, Any, None]],
    cancelled: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> None:
    async def whole() -> None:
        talk = Talk(InProcess(loaded, cancelled), None, "/home/x", print)
        talk.settings = ChatSettings(**{"max_tokens": 12, **settings})
        try:
            await work(talk)
        finally:
            await talk.close()

    asyncio.run(whole())


async def ask(talk: Chat, text: str, show: Callable[[str], object] = str) -> Message:
    talk.say(text)
    return await talk.answer(lambda new, _: (show(new), None)[1], lambda: None)


def offline(loaded: LoadedPair, *texts: str, system: str = "", most: int = 12) -> str:
    """The answer to these messages, by turns."""
    turns = [TemplateMessage("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]
    before = [TemplateMessage("system", system)] if system else []
    return "".join(Answer(loaded, prepare(loaded, [*before, *turns], most, SamplingParams())))


def test_answers_join_the_history(loaded: LoadedPair) -> None:
    async def work(talk: Chat) -> None:
        first = await ask(talk, "One?")
        assert first.text == offline(loaded, "One?", system="Be brief.")
        second = await ask(talk, "Two?")
        assert second.text == offline(loaded, "One?", first.text, "Two?", system="Be brief.")
        assert [message.role for message in talk.messages] == ["user", "assistant"] * 2
        talk.new()
        assert (await ask(talk, "One?")).text == first.text
        await talk.count()
        assert talk.used
        assert talk.used > first.numbers["prompt_tokens"] + first.numbers["tokens"]

    async def with_system(talk: Chat) -> None:
        talk.system = "Be brief."
        await work(talk)

    talking(loaded, with_system)


def test_the_next_question_computes_only_what_is_new(loaded: LoadedPair) -> None:
    async def work(talk: Chat) -> None:
        await ask(talk, "One? " * 10)
        assert (await ask(talk, "Two?")).numbers["cached_tokens"] > 20

    talking(loaded, work)


def test_a_cancelled_answer_is_kept_as_far_as_it_went(loaded: LoadedPair) -> None:
    seen: list[str] = []

    async def work(talk: Chat) -> None:
        answer = await ask(talk, "Tell me.", seen.append)
        assert (answer.finish, answer.text) == ("cancelled", "".join(seen))
        assert 0 < answer.numbers["tokens"] < 100
        assert talk.messages[-1] == answer

    talking(loaded, work, lambda: bool(seen), max_tokens=100)


def test_an_answer_that_is_stopped_is_kept_too(loaded: LoadedPair) -> None:
    async def work(talk: Chat) -> None:
        answer = await ask(talk, "Tell me.", lambda _: talk.stop())
        assert answer.finish == "cancelled"
        assert 0 < len(answer.text) < len(offline(loaded, "Tell me.", most=100))

    talking(loaded, work, max_tokens=100)


def test_a_question_that_does_not_fit_leaves_the_rest_as_it_was(loaded: LoadedPair) -> None:
    async def work(talk: Chat) -> None:
        await ask(talk, "One?")
        before = list(talk.messages)
        with pytest.raises(ContextOverflow, match="the context holds 256"):
            await ask(talk, "word " * 300)
        talk.take_back_question()
        assert talk.messages == before
        await ask(talk, "Two?")
        assert len(talk.messages) == 4

    talking(loaded, work)


def test_drafting_changes_no_conversation(tiny_pair: Path) -> None:
    texts: list[list[str]] = []

    async def work(talk: Chat) -> None:
        texts.append([(await ask(talk, question)).text for question in ("One?", "Again, one?", "One?")])

    for draft in (True, False):
        options = Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1, context=512, draft=draft)
        with LoadedPair(options) as loaded:
            talking(loaded, work, max_tokens=60)
    assert texts[0] == texts[1]
