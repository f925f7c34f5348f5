"""What was typed or received reaches the disk once, whatever else happens while it is stored."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import EngineGone, StoreFailed
from localdflash.chat.answerer import AnswerPiece, Done
from localdflash.chat.messages import Message
from localdflash.chat.store import ChatStore
from localdflash.chat.talk import Talk
from tests.support.fake_answerer import ANSWER, STEP, FakeAnswerer

Work = Callable[[Talk, Any], Coroutine[Any, Any, None]]


def run(work: Work, *script: object, chats: Path | None = None) -> list[str]:
    """Do something with a conversation; what was told."""
    told: list[str] = []

    async def whole() -> None:
        answerer: Any = FakeAnswerer(*script)
        talk = Talk(answerer, chats, "/home/x", told.append)
        await work(talk, answerer)
        await talk.close()
        await talk.close()  # who leaves twice leaves once

    asyncio.run(whole())
    return told


def ignore(*_: object) -> None:
    pass


async def exchange(talk: Talk, text: str = "why?") -> Message:
    talk.say(text)
    return await talk.answer(ignore, ignore)


async def every_text(talk: Talk) -> list[list[str]]:
    """The texts of all chats."""
    found = await talk.kept(ChatStore.sessions)
    return sorted([[one.text for one in await talk.kept(ChatStore.path, info.id)] for info in found])


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


@pytest.mark.parametrize("name", ["create", "add"])
def test_stopping_while_the_question_is_stored_stores_it_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(talk: Talk, answerer: Any) -> None:
        slow = Slow(monkeypatch, name)
        talk.say("why?")
        answering = asyncio.create_task(talk.answer(ignore, ignore))
        await slow.has_begun()
        talk.stop()
        await asyncio.sleep(0)
        slow.go.set()
        await answering
        question, answer = await talk.kept(ChatStore.path, talk.session or 0)
        assert (question, answer.finish) == (talk.messages[0], "cancelled")
        assert await talk.kept(ChatStore.versions, question.id) == [question.id]
        assert talk.session == 1  # no chat without messages stays behind

    run(work, *ANSWER)


def test_leaving_twice_while_the_answer_is_stored_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(talk: Talk, answerer: Any) -> None:
        talk.say("why?")
        answering = asyncio.create_task(talk.answer(ignore, ignore))
        await answerer.waits.wait()
        slow = Slow(monkeypatch, "add")
        answering.cancel()
        await slow.has_begun()
        answering.cancel()
        await asyncio.sleep(0)
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await answering
        await talk.save()
        assert await every_text(talk) == [["why?", "It "]]

    run(work, AnswerPiece("It ", STEP), None)


def test_an_answer_whose_end_could_not_be_stored_is_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(talk: Talk, answerer: Any) -> None:
        await exchange(talk)
        disk = Full(monkeypatch, "update")
        answerer.script = [AnswerPiece(" Really.", None), Done("stop", {})]
        await talk.answer(ignore, ignore, goes_on=True)
        assert talk.unsaved
        disk.full = False
        await exchange(talk, "and then?")
        assert await every_text(talk) == [["why?", "It is. Really.", "and then?", " Really."]]

    told = run(work, *ANSWER, chats=tmp_path / "chats.db")
    assert [line.split(":")[0] for line in told] == ["not saved", "saved again"]


def test_a_chat_that_was_left_unsaved_is_saved_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(talk: Talk, answerer: Any) -> None:
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
        systems = {info.title: info.system for info in await talk.kept(ChatStore.sessions)}
        assert systems == {"first": "Be brief.", "second": "Be long."}

    told = run(work, *ANSWER)
    assert [line.split(":")[0] for line in told] == ["not saved", "saved again"]


def test_an_answer_stays_in_its_chat_when_another_one_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(talk: Talk, answerer: Any) -> None:
        await exchange(talk, "first")
        first, answerer.script = talk.session, [AnswerPiece("New.", STEP), None]
        assert first
        talk.new()
        talk.say("second")
        answering = asyncio.create_task(talk.answer(ignore, ignore))
        await answerer.waits.wait()
        await talk.open(first)
        talk.stop()
        assert (await answering).text == "New."
        assert [one.text for one in talk.messages] == ["first", "It is."]
        assert await every_text(talk) == [["first", "It is."], ["second", "New."]]

    run(work, *ANSWER)


def test_a_chat_that_is_deleted_while_it_is_answered_stays_deleted() -> None:
    async def work(talk: Talk, answerer: Any) -> None:
        talk.say("why?")
        answering = asyncio.create_task(talk.answer(ignore, ignore))
        await answerer.waits.wait()
        assert talk.session
        await talk.delete(talk.session)
        await answering
        await exchange_stored(talk, answerer)

    async def exchange_stored(talk: Talk, answerer: Any) -> None:
        assert (talk.messages, talk.session) == ([], None)
        answerer.script = list(ANSWER)
        await exchange(talk, "another")
        assert await every_text(talk) == [["another", "It is."]]

    assert run(work, AnswerPiece("It ", None), None) == []


def test_nothing_that_two_processes_add_to_one_answer_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    async def work(talk: Talk, answerer: Any) -> None:
        await exchange(talk)
        assert talk.session
        answerer.script = [AnswerPiece(" From one.", None), Done("stop", {})]
        other_answerer: Any = FakeAnswerer(AnswerPiece(" From the other.", None), Done("stop", {}))
        other = Talk(other_answerer, path, "/home/x", ignore)
        await other.open(talk.session)
        await talk.answer(ignore, ignore, goes_on=True)
        await other.answer(ignore, ignore, goes_on=True)
        versions = await talk.kept(ChatStore.versions, talk.messages[-1].id)
        assert versions == [talk.messages[-1].id, other.messages[-1].id]
        await other.close()
        assert [one.text for one in await talk.kept(ChatStore.path, talk.session)] == ["why?", "It is. From the other."]
        assert await talk.version(1)
        assert talk.messages[-1].text == "It is. From the other."

    assert run(work, *ANSWER, chats=path) == []


def test_what_a_killed_process_left_is_shown_as_stopped_and_goes_on() -> None:
    async def work(talk: Talk, answerer: Any) -> None:
        session = await talk.kept(ChatStore.create, folder="/home/x")
        question = await talk.kept(ChatStore.add, session, None, Message("user", "why?"))
        await talk.kept(ChatStore.add, session, question.id, Message("assistant", "It "))
        await talk.open(session)
        assert talk.messages[-1].finish == "cancelled"
        answerer.script = [AnswerPiece("is.", None), Done("stop", {})]
        answer = await talk.answer(ignore, ignore, goes_on=True)
        assert (answer.text, answer.finish) == ("It is.", "stop")
        assert await talk.kept(ChatStore.path, session) == talk.messages

    run(work)


def test_an_answer_that_never_began_is_not_stored() -> None:
    async def work(talk: Talk, answerer: Any) -> None:
        with pytest.raises(EngineGone):
            await exchange(talk)
        assert await every_text(talk) == [["why?"]]

    run(work, EngineGone("nobody is there"))


@pytest.mark.parametrize("what", ["the file", "the folder", "another file"])
def test_a_file_that_is_removed_while_it_is_used(what: str, tmp_path: Path) -> None:
    path = tmp_path / "data" / "chats.db"

    async def work(talk: Talk, answerer: Any) -> None:
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

    (line,) = run(work, *ANSWER, chats=path)
    assert line == f"{path}: was removed or replaced; this chat is stored again"
    store = ChatStore.open(path, ignore)
    found = [[one.text for one in store.path(info.id)] for info in store.sessions()]
    store.close()
    assert found[0] == ["first", "It is.", "second", "It is."]
    assert found[1:] == ([["not ours"]] if what == "another file" else [])
    assert path.stat().st_mode & 0o077 == 0
