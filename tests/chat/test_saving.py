"""What was typed or received reaches the disk once, whatever else happens while it is stored."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import StoreFailed
from localdflash.chat.answerer import AnswerPiece, Done
from localdflash.chat.messages import Message
from localdflash.chat.store import ChatStore
from localdflash.chat.talk import Talk
from tests.chat.conversations import exchange, ignore, talking
from tests.support.fake_answerer import ANSWER, FakeAnswerer


async def every_text(talk: Talk) -> list[list[str]]:
    """The texts of all chats."""
    found = await talk.run_in_store(ChatStore.sessions)
    return sorted([[one.text for one in await talk.run_in_store(ChatStore.path, info.id)] for info in found])


class Slow:
    """A method of the store that waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        work = getattr(ChatStore, name)

        def slow(*arguments: Any, **names: Any) -> Any:
            self.begun.set()
            assert self.go.wait(10)
            return work(*arguments, **names)

        monkeypatch.setattr(ChatStore, name, slow)

    async def has_begun(self) -> None:
        """Wait for it."""
        assert await asyncio.to_thread(self.begun.wait, 10)


class Full:
    """A method of the store that fails until there is room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.full, work = True, getattr(ChatStore, name)

        def failing(*arguments: Any) -> Any:
            if self.full:
                raise StoreFailed("chats.db: the disk is full")
            return work(*arguments)

        monkeypatch.setattr(ChatStore, name, failing)


async def test_stopping_while_the_question_is_stored_stores_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking(*ANSWER) as (talk, _answerer, _told):
        slow = Slow(monkeypatch, "add")
        talk.say("why?")
        answering = asyncio.create_task(talk.answer(ignore, ignore))
        await slow.has_begun()
        talk.stop()
        await asyncio.sleep(0)
        slow.go.set()
        await answering
        question, answer = await talk.run_in_store(ChatStore.path, talk.session or 0)
        assert (question, answer.finish) == (talk.messages[0], "cancelled")
        assert await talk.run_in_store(ChatStore.versions, question.id) == [question.id]
        assert talk.session == 1  # no chat without messages stays behind


async def test_an_answer_whose_end_could_not_be_stored_is_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talking(*ANSWER, chats=tmp_path / "chats.db") as (talk, answerer, told):
        await exchange(talk)
        disk = Full(monkeypatch, "update")
        answerer.script = [AnswerPiece(" Really.", None), Done("stop", {})]
        await talk.answer(ignore, ignore, goes_on=True)
        assert talk.unsaved
        disk.full = False
        await exchange(talk, "and then?")
        assert await every_text(talk) == [["why?", "It is. Really.", "and then?", " Really."]]
    assert [line.split(":")[0] for line in told] == ["not saved", "saved again"]


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
        assert not talk.unsaved
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
            with_another_chat = ChatStore.open(path.with_name("other.db"), ignore)
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
    store = ChatStore.open(path, ignore)
    found = [[one.text for one in store.path(info.id)] for info in store.sessions()]
    store.close()
    assert found[0] == ["first", "It is.", "second", "It is."]
    assert found[1:] == ([["not ours"]] if what == "another file" else [])
    assert path.stat().st_mode & 0o077 == 0
