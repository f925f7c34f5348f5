"""Conversations: answers, versions, forks; what was typed or received reaches the disk once."""

from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import StoreError, UsageError
from localdflash.chat.answerer import AnswerPiece, Done
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.store import ChatStore
from localdflash.chat.talk import Talk
from tests.chat.conversations import exchange, ignore, stored, talking
from tests.support.fake_answerer import ANSWER, NUMBERS, STEP, FakeAnswerer


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


async def every_text(talk: Talk) -> list[list[str]]:
    """The texts of all chats."""
    found = await talk.run_in_store(ChatStore.sessions)
    return sorted([[one.text for one in await talk.run_in_store(ChatStore.path, info.id)] for info in found])


class Full:
    """A method of the store that fails until there is room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.full, work = True, getattr(ChatStore, name)

        def failing(*arguments: Any) -> Any:
            if self.full:
                raise StoreError("chats.db: the disk is full")
            return work(*arguments)

        monkeypatch.setattr(ChatStore, name, failing)


async def test_a_chat_that_was_left_unsaved_is_saved_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking(*ANSWER) as (talk, _answerer, told):
        disk = Full(monkeypatch, "add")
        talk.system = "Be brief."
        await exchange(talk, "first")
        talk.new()
        talk.system = "Be long."
        await exchange(talk, "second")
        disk.full = False
        await talk.save()
        assert not talk._saver.unsaved
        assert await every_text(talk) == [["first", "It is."], ["second", "It is."]]
        systems = {info.title: info.system for info in await talk.run_in_store(ChatStore.sessions)}
        assert systems == {"first": "Be brief.", "second": "Be long."}
    assert [line.split(":")[0] for line in told] == ["not saved", "saved again"]


async def test_nothing_that_two_processes_add_to_one_answer_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    async with talking(*ANSWER, chats=path) as (talk, answerer, told):
        await exchange(talk)
        assert talk.session
        answerer.script = [AnswerPiece(" From one.", None), Done("stop", {})]
        other_answerer: Any = FakeAnswerer(AnswerPiece(" From the other.", None), Done("stop", {}))
        other = Talk(other_answerer, path, "/home/x", ignore)
        await other.open(talk.session)
        await talk.answer(ignore, ignore, goes_on=True)
        await other.answer(ignore, ignore, goes_on=True)
        versions = await talk.run_in_store(ChatStore.versions, talk.messages[-1].id)
        assert versions == [talk.messages[-1].id, other.messages[-1].id]
        await other.close()
        assert [one.text for one in await talk.run_in_store(ChatStore.path, talk.session)] == [
            "why?",
            "It is. From the other.",
        ]
        assert await talk.version(1)
        assert talk.messages[-1].text == "It is. From the other."
    assert told == []


async def test_what_a_killed_process_left_is_shown_as_stopped_and_goes_on() -> None:
    async with talking() as (talk, answerer, _told):
        session = await talk.run_in_store(ChatStore.create, folder="/home/x")
        question = await talk.run_in_store(ChatStore.add, session, None, Message("user", "why?"))
        await talk.run_in_store(ChatStore.add, session, question.id, Message("assistant", "It "))
        await talk.open(session)
        assert talk.messages[-1].finish == "cancelled"
        answerer.script = [AnswerPiece("is.", None), Done("stop", {})]
        answer = await talk.answer(ignore, ignore, goes_on=True)
        assert (answer.text, answer.finish) == ("It is.", "stop")
        assert await talk.run_in_store(ChatStore.path, session) == talk.messages


@pytest.mark.parametrize("what", ["the file", "the folder", "another file"])
async def test_a_file_that_is_removed_while_it_is_used(what: str, tmp_path: Path) -> None:
    path = tmp_path / "data" / "chats.db"

    async with talking(*ANSWER, chats=path) as (talk, _answerer, told):
        await exchange(talk, "first")
        if what == "another file":
            with_another_chat = ChatStore(path.with_name("other.db"), ignore)
            number = with_another_chat.create(folder="/home/x")
            with_another_chat.add(number, None, Message("user", "not ours"))
            with_another_chat.close()
            path.with_name("other.db").rename(path)
        else:
            for file in [path] if what == "the file" else list(path.parent.iterdir()):
                file.unlink()
        if what == "the folder":
            path.parent.rmdir()
        await exchange(talk, "second")
    (line,) = told
    assert line == f"{path}: was removed or replaced; this chat is stored again"
    store = ChatStore(path, ignore)
    found = [[one.text for one in store.path(info.id)] for info in store.sessions()]
    store.close()
    assert found[0] == ["first", "It is.", "second", "It is."]
    assert found[1:] == ([["not ours"]] if what == "another file" else [])
    assert path.stat().st_mode & 0o077 == 0
