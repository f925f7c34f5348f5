"""Conversations: answers, versions, forks, and their storage."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import ContextOverflow, StoreError, UsageError
from localdflash.chat.answerer import AnswerPiece, AnswerRestart, Done
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.store import ChatStore
from localdflash.chat.talk import Talk
from tests.support.fake_answerer import ANSWER, NUMBERS, STEP, FakeAnswerer


@asynccontextmanager
async def open_talk(*script: object, chats: Path | None = None) -> AsyncIterator[tuple[Talk, Any, list[str]]]:
    """Yield a conversation, its engine, and the notices; then close it."""
    notices: list[str] = []
    answerer: Any = FakeAnswerer(*script)
    talk = Talk(answerer, chats, "/home/x", notices.append)
    yield talk, answerer, notices
    await talk.close()
    await talk.close()  # a second call does nothing


def ignore(*_: object) -> None:
    pass


async def exchange(talk: Talk, text: str = "why?") -> Message:
    talk.add_user_message(text)
    return await talk.answer(ignore, ignore)


async def stored_messages(talk: Talk) -> list[Message]:
    """Return the messages on disk."""
    assert talk.chat_id is not None
    return await talk.run_in_store(ChatStore.branch, talk.chat_id)


async def test_answer_is_appended_and_stored() -> None:
    async with open_talk(*ANSWER) as (talk, answerer, notices):
        shown: list[object] = []
        talk.system = "Be brief."
        talk.add_user_message("why?", [Attachment("file", "a.py", "x = 1\n")])
        answer = await talk.answer(lambda text, step: shown.append((text, step)), ignore)
        assert shown == [("It ", STEP), ("is.", None)]
        assert (answer.text, answer.finish, answer.steps, answer.numbers) == ("It is.", "stop", (STEP,), NUMBERS)
        assert talk.messages[-1] is answer
        ((sent, system, continue_last),) = answerer.requests
        assert ([message.text for message in sent], system, continue_last) == (["why?"], "Be brief.", False)
        assert await stored_messages(talk) == talk.messages
        info = await talk.run_in_store(ChatStore.info, talk.chat_id or 0)
        assert (info.folder, info.model, info.system) == ("/home/x", "tiny", "Be brief.")
    assert notices == []


async def test_restart_discards_the_text_in_the_chat() -> None:
    script = AnswerPiece("Old. ", None), AnswerRestart(), AnswerPiece("New.", None), Done("stop", {})
    async with open_talk(*script) as (talk, _answerer, _notices):
        seen: list[str] = []
        talk.add_user_message("why?")
        answer = await talk.answer(ignore, lambda: seen.append(talk.messages[-1].text))
        assert (seen, answer.text) == ([""], "New.")


async def test_refused_question_is_stored_with_its_answer() -> None:
    async with open_talk(*ANSWER) as (talk, answerer, _notices):
        await exchange(talk)
        answerer.script = [ContextOverflow("the prompt is too long")]
        with pytest.raises(ContextOverflow):
            await exchange(talk, "and then?")
        await talk.save()
        assert [message.text for message in await stored_messages(talk)] == ["why?", "It is."]
        answerer.script = list(ANSWER)
        await talk.answer(ignore, ignore)
        assert await stored_messages(talk) == talk.messages
        assert len(talk.messages) == 4


async def test_retry_adds_a_version() -> None:
    async with open_talk(*ANSWER) as (talk, answerer, _notices):
        await exchange(talk)
        talk.remove_answer()
        answerer.script = [AnswerPiece("No.", None), Done("stop", {})]
        await talk.answer(ignore, ignore)
        assert [message.text for message in talk.messages] == ["why?", "No."]
        assert not await talk.show_version(1)
        assert await talk.show_version(-1)
        assert [message.text for message in talk.messages] == ["why?", "It is."]
        assert not await talk.show_version(-1)
        assert await talk.show_version(1)
        assert talk.messages[-1].text == "No."


async def test_fork_keeps_the_original_chat() -> None:
    async with open_talk(*ANSWER) as (talk, _answerer, _notices):
        await exchange(talk)
        await exchange(talk, "and then?")
        before = talk.chat_id
        await talk.fork(2)
        assert talk.chat_id != before
        assert [message.text for message in talk.messages] == ["why?", "It is."]
        await exchange(talk, "another way?")
        assert before is not None
        assert len(await talk.run_in_store(ChatStore.branch, before)) == 4
        for number in (0, 9):
            with pytest.raises(UsageError, match="this chat has 4"):
                await talk.fork(number)


@pytest.mark.parametrize("number", [None, 3])
async def test_fork_leaves_out_a_question_without_an_answer(number: int | None) -> None:
    async with open_talk(*ANSWER) as (talk, answerer, _notices):
        await exchange(talk)
        answerer.script = [ContextOverflow("the prompt is too long")]
        with pytest.raises(ContextOverflow):
            await exchange(talk, "and then?")
        await talk.fork(number)
        assert [message.text for message in talk.messages] == ["why?", "It is."]


async def test_empty_chat_refuses_retry_edit_and_fork() -> None:
    async with open_talk() as (talk, _answerer, _notices):
        for remove in (talk.remove_answer, talk.remove_user_message):
            with pytest.raises(UsageError, match="this chat has no message yet"):
                remove()
        with pytest.raises(UsageError, match="nothing to fork"):
            await talk.fork(None)
        assert not await talk.show_version(-1)
        assert talk.chat_id is None


async def test_chat_deleted_elsewhere_is_stored_again() -> None:
    async with open_talk(*ANSWER) as (talk, _answerer, notices):
        await exchange(talk)
        assert talk.chat_id is not None
        await talk.run_in_store(ChatStore.delete, talk.chat_id)
        await exchange(talk, "and then?")
        assert await stored_messages(talk) == talk.messages
        assert len(talk.messages) == 4
    (line,) = notices
    assert line.endswith("it was deleted; this chat is saved as a new one")


class _DiskFullForVacuum:
    """Database connection that has no room for VACUUM."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement == "VACUUM":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._connection.execute(statement, *values)


async def test_deleted_chat_that_cannot_be_erased_is_not_stored_again() -> None:
    async with open_talk(*ANSWER) as (talk, _answerer, _notices):
        await exchange(talk)
        assert talk.chat_id is not None
        database: Any = await talk.run_in_store(lambda store: store._database)
        connection, database._connection = database._connection, _DiskFullForVacuum(database._connection)
        error = await talk.delete(talk.chat_id)
        database._connection = connection
        assert str(error) == "chats: the disk is full; free some space"
        assert talk.messages == []
        await exchange(talk, "and then?")
        assert await all_texts(talk) == [["and then?", "It is."]]


async def all_texts(talk: Talk) -> list[list[str]]:
    """Return the texts of all chats."""
    found = await talk.run_in_store(ChatStore.sessions)
    return sorted([[one.text for one in await talk.run_in_store(ChatStore.branch, info.id)] for info in found])


class FullDisk:
    """Patch of a store method, which fails while `full` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.full, method = True, getattr(ChatStore, name)

        def failing(*arguments: Any) -> Any:
            if self.full:
                raise StoreError("chats.db: the disk is full")
            return method(*arguments)

        monkeypatch.setattr(ChatStore, name, failing)


@pytest.mark.parametrize("method", ["__init__", "add"])
async def test_unsaved_chat_is_saved_with_the_next_one(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_talk(*ANSWER) as (talk, _answerer, notices):
        disk = FullDisk(monkeypatch, method)
        talk.system = "Be brief."
        await exchange(talk, "first")
        talk.start_new_chat()
        talk.system = "Be long."
        await exchange(talk, "second")
        disk.full = False
        await talk.save()
        assert not talk._saver.unsaved
        assert await all_texts(talk) == [["first", "It is."], ["second", "It is."]]
        systems = {info.title: info.system for info in await talk.run_in_store(ChatStore.sessions)}
        assert systems == {"first": "Be brief.", "second": "Be long."}
    assert [line.split(":")[0] for line in notices] == ["not saved", "saving works again; all messages are saved"]


async def test_two_processes_continuing_one_answer_make_two_versions(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    async with open_talk(*ANSWER, chats=path) as (talk, answerer, notices):
        await exchange(talk)
        assert talk.chat_id
        answerer.script = [AnswerPiece(" From one.", None), Done("stop", {})]
        other_answerer: Any = FakeAnswerer(AnswerPiece(" From the other.", None), Done("stop", {}))
        other = Talk(other_answerer, path, "/home/x", ignore)
        await other.open(talk.chat_id)
        await talk.answer(ignore, ignore, continue_last=True)
        await other.answer(ignore, ignore, continue_last=True)
        versions = await talk.run_in_store(ChatStore.versions, talk.messages[-1].id)
        assert versions == [talk.messages[-1].id, other.messages[-1].id]
        await other.close()
        assert [one.text for one in await talk.run_in_store(ChatStore.branch, talk.chat_id)] == [
            "why?",
            "It is. From the other.",
        ]
        assert await talk.show_version(1)
        assert talk.messages[-1].text == "It is. From the other."
    assert notices == []


async def test_answer_of_a_killed_process_is_cancelled_and_can_continue() -> None:
    async with open_talk() as (talk, answerer, _notices):
        session = await talk.run_in_store(ChatStore.create, folder="/home/x")
        question = await talk.run_in_store(ChatStore.add, session, None, Message("user", "why?"))
        await talk.run_in_store(ChatStore.add, session, question.id, Message("assistant", "It "))
        await talk.open(session)
        assert talk.messages[-1].finish == "cancelled"
        answerer.script = [AnswerPiece("is.", None), Done("stop", {})]
        answer = await talk.answer(ignore, ignore, continue_last=True)
        assert (answer.text, answer.finish) == ("It is.", "stop")
        assert await talk.run_in_store(ChatStore.branch, session) == talk.messages


@pytest.mark.parametrize("removed", ["the file", "the folder", "another file"])
async def test_chat_is_stored_again_after_its_file_was_removed(removed: str, tmp_path: Path) -> None:
    path = tmp_path / "data" / "chats.db"

    async with open_talk(*ANSWER, chats=path) as (talk, _answerer, notices):
        await exchange(talk, "first")
        if removed == "another file":
            other_store = ChatStore(path.with_name("other.db"), ignore)
            number = other_store.create(folder="/home/x")
            other_store.add(number, None, Message("user", "not ours"))
            other_store.close()
            path.with_name("other.db").rename(path)
        else:
            for file in [path] if removed == "the file" else list(path.parent.iterdir()):
                file.unlink()
        if removed == "the folder":
            path.parent.rmdir()
        await exchange(talk, "second")
    (line,) = notices
    assert line == f"{path}: was removed or replaced; this chat is saved as a new one"
    store = ChatStore(path, ignore)
    found = [[one.text for one in store.branch(info.id)] for info in store.sessions()]
    store.close()
    assert found[0] == ["first", "It is.", "second", "It is."]
    assert found[1:] == ([["not ours"]] if removed == "another file" else [])
    assert path.stat().st_mode & 0o077 == 0
