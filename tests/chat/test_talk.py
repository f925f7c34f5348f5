"""The conversation over a store in memory and an engine that says what it is told to say."""

import pytest

from localdflash.base.errors import EngineGone, UsageError
from localdflash.chat.answerer import AnswerPiece, Done
from localdflash.chat.messages import Attachment
from localdflash.chat.store import ChatStore
from tests.chat.conversations import exchange, ignore, stored, talking
from tests.support.fake_answerer import ANSWER, NUMBERS, STEP


async def test_an_answer_joins_the_messages_and_the_store() -> None:
    async with talking(*ANSWER) as (talk, answerer, told):
        shown: list[object] = []
        talk.system = "Be brief."
        talk.say("why?", [Attachment("file", "a.py", "x = 1\n")])
        answer = await talk.answer(lambda text, step: shown.append((text, step)), ignore)
        assert shown == [("It ", STEP), ("is.", None)]
        assert (answer.text, answer.finish, answer.steps, answer.numbers) == ("It is.", "stop", (STEP,), NUMBERS)
        assert talk.messages[-1] is answer
        ((sent, system, goes_on),) = answerer.asked
        assert ([message.text for message in sent], system, goes_on) == (["why?"], "Be brief.", False)
        assert await stored(talk) == talk.messages
        info = await talk.run_in_store(ChatStore.info, talk.session or 0)
        assert (info.folder, info.model, info.system) == ("/home/x", "tiny", "Be brief.")
    assert told == []


async def test_an_engine_that_goes_away_leaves_what_it_said() -> None:
    async with talking(AnswerPiece("It ", STEP), EngineGone("it went away")) as (talk, _answerer, _told):
        with pytest.raises(EngineGone):
            await exchange(talk)
        assert (talk.messages[-1].text, talk.messages[-1].finish) == ("It ", "gone")
        assert (await stored(talk))[-1].finish == "gone"


async def test_going_on_with_an_answer() -> None:
    async with talking(*ANSWER) as (talk, answerer, _told):
        first = await exchange(talk)
        answerer.script = [AnswerPiece(" Really.", STEP), Done("length", {"tokens": 2})]
        answer = await talk.answer(ignore, ignore, goes_on=True)
        assert (answer.text, answer.steps, answer.finish) == ("It is. Really.", (STEP, STEP), "length")
        assert answer.id == first.id
        assert answerer.asked[-1][2] is True
        assert [message.text for message in answerer.asked[-1][0]] == ["why?", "It is."]
        assert await stored(talk) == talk.messages


async def test_another_answer_is_another_version() -> None:
    async with talking(*ANSWER) as (talk, answerer, _told):
        await exchange(talk)
        talk.take_back_answer()
        answerer.script = [AnswerPiece("No.", None), Done("stop", {})]
        await talk.answer(ignore, ignore)
        assert [message.text for message in talk.messages] == ["why?", "No."]
        assert not await talk.version(1)
        assert await talk.version(-1)
        assert [message.text for message in talk.messages] == ["why?", "It is."]
        assert not await talk.version(-1)
        assert await talk.version(1)
        assert talk.messages[-1].text == "No."


async def test_a_fork_leaves_the_chat_before() -> None:
    async with talking(*ANSWER) as (talk, _answerer, _told):
        await exchange(talk)
        await exchange(talk, "and then?")
        before = talk.session
        await talk.fork(2)
        assert talk.session != before
        assert [message.text for message in talk.messages] == ["why?", "It is."]
        await exchange(talk, "another way?")
        assert before is not None
        assert len(await talk.run_in_store(ChatStore.path, before)) == 4
        for number in (0, 9):
            with pytest.raises(UsageError, match="this chat has 4"):
                await talk.fork(number)


async def test_nothing_to_work_with() -> None:
    async with talking() as (talk, _answerer, _told):
        for what in (talk.take_back_answer, talk.take_back_question):
            with pytest.raises(UsageError, match="nothing was asked"):
                what()
        with pytest.raises(UsageError, match="nothing to fork"):
            await talk.fork(None)
        assert not await talk.version(-1)
        assert talk.session is None


async def test_a_chat_that_was_deleted_elsewhere_is_stored_again() -> None:
    async with talking(*ANSWER) as (talk, _answerer, told):
        await exchange(talk)
        assert talk.session is not None
        await talk.run_in_store(ChatStore.delete, talk.session)
        await exchange(talk, "and then?")
        assert await stored(talk) == talk.messages
        assert len(talk.messages) == 4
    (line,) = told
    assert line.endswith("it was deleted; this chat is stored again")
