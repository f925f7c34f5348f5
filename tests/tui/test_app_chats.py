"""Stored chats in the whole app, by keys and commands."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
from textual.pilot import Pilot

from localdflash.base.errors import StoreError
from localdflash.chat.answerer import AnswerPiece
from localdflash.chat.store import ChatStore
from localdflash.tui.app_base import LATEST
from localdflash.tui.chat_app import ChatApp
from tests.support.fake_answerer import STEP
from tests.tui.chat_stage import ask_and_wait, chat, command, screen_text, texts, type_and_send, wait_until


async def two_chats(pilot: Pilot[Any], app: ChatApp) -> None:
    await ask_and_wait(pilot, "how do boxes stack?")
    await pilot.press("ctrl+n")
    await wait_until(pilot, lambda: not app.talk.messages)
    await ask_and_wait(pilot, "what is a tree?")


async def test_new_chat_and_picker() -> None:
    async with chat() as (pilot, app, answerer):
        await two_chats(pilot, app)
        assert [message.text for message in answerer.requests[-1][0]] == ["what is a tree?"]
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: "how do boxes stack?" in screen_text(app))
        await pilot.press(*"boxes")
        await wait_until(pilot, lambda: "what is a tree?" not in screen_text(app).partition("boxes")[2])
        await pilot.press("enter")
        await wait_until(pilot, lambda: texts(app) == ["how do boxes stack?", "It is."])
        await wait_until(pilot, lambda: "how do boxes stack?" in screen_text(app) and not app.is_covered)


async def test_picker_renames_and_deletes() -> None:
    async with chat() as (pilot, app, _answerer):
        await two_chats(pilot, app)
        await command(pilot, "/chats")
        await wait_until(pilot, lambda: app.is_covered and "2 chats" in screen_text(app))
        await pilot.press(*"boxes")
        await wait_until(pilot, lambda: "1 chat " in screen_text(app))
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: "Name of this chat" in screen_text(app))
        await pilot.press("ctrl+u", *"Boxes", "enter")
        await wait_until(pilot, lambda: "Boxes" in screen_text(app))  # the list shows the matches, as before
        await pilot.press("ctrl+d")
        await wait_until(pilot, lambda: "cannot be brought back" in screen_text(app))
        await pilot.press("y")
        await wait_until(pilot, lambda: "cannot be brought back" not in screen_text(app))
        assert [info.title for info in await app.talk.run_in_store(ChatStore.sessions)] == ["what is a tree?"]
        assert texts(app) == ["what is a tree?", "It is."]


async def test_fork() -> None:
    async with chat() as (pilot, app, _answerer):
        await ask_and_wait(pilot, "one?")
        await ask_and_wait(pilot, "two?")
        await command(pilot, "/fork 2")
        await wait_until(pilot, lambda: texts(app) == ["one?", "It is."])
        assert len(await app.talk.run_in_store(ChatStore.sessions)) == 2
        await command(pilot, "/fork 7")
        await wait_until(pilot, lambda: "there is no message 7" in screen_text(app))
        await command(pilot, "/fork x")
        await wait_until(pilot, lambda: "expected the number of a message" in screen_text(app))
        await pilot.press("shift+tab")
        app.transcript.focus()
        await pilot.press("k", "f")
        await wait_until(pilot, lambda: "new chat that continues" in screen_text(app))


@pytest.mark.parametrize(
    ("line", "shown"),
    [("/fork x", "expected the number"), ("/fork 99", "there is no message 99"), ("/delete", "cannot be brought back")],
)
async def test_refused_or_cancelled_command_does_not_stop_the_answer(line: str, shown: str) -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot)
        answerer.script = [AnswerPiece("It ", STEP), None]
        await type_and_send(pilot, "and then?")
        await answerer.waits.wait()
        for text in ("one", "two", line):
            app.prompt.put_all(text)
            await pilot.press("enter")
        await wait_until(pilot, lambda: shown in screen_text(app))
        if app.is_covered:
            await pilot.press("escape")
            await wait_until(pilot, lambda: not app.is_covered)
        await pilot.pause()
        assert app.talk.is_answering
        assert [text for text, _ in app.queued] == ["one", "two"]


async def test_fork_and_delete_stop_the_answer() -> None:
    async with chat(AnswerPiece("It ", STEP), None) as (pilot, app, answerer):
        await type_and_send(pilot, "why?")
        await answerer.waits.wait()
        app.action_fork()
        await wait_until(pilot, lambda: "new chat that continues" in screen_text(app))
        assert texts(app) == ["why?", "It "]
        assert not app.talk.is_answering
        answerer.waits.clear()
        await pilot.press("ctrl+r")
        await answerer.waits.wait()
        app.action_delete()
        await wait_until(pilot, lambda: "cannot be brought back" in screen_text(app))
        await pilot.press("y")
        await wait_until(pilot, lambda: texts(app) == [])
        assert not app.talk.is_answering
        assert len(await app.talk.run_in_store(ChatStore.sessions)) == 1


async def test_export(tmp_path: Path) -> None:
    async with chat(folder=tmp_path) as (pilot, app, _answerer):
        await command(pilot, "/export a.md")
        await wait_until(pilot, lambda: "nothing to write" in screen_text(app))
        await ask_and_wait(pilot)
        await command(pilot, "/export a.md")
        await wait_until(pilot, (tmp_path / "a.md").exists)
        assert "why?" in (tmp_path / "a.md").read_text()
        await command(pilot, f"/export {tmp_path}/a.json")
        await wait_until(pilot, (tmp_path / "a.json").exists)
        assert json.loads((tmp_path / "a.json").read_text())
        await command(pilot, "/export a.txt")
        await wait_until(pilot, lambda: "the name must end" in screen_text(app))
        (tmp_path / "a.md").write_text("mine")
        await command(pilot, "/export a.md")
        await wait_until(pilot, lambda: "Replace the file?" in screen_text(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.is_covered)
        assert (tmp_path / "a.md").read_text() == "mine"
        await command(pilot, "/export ~nobody-has-this-name/a.md")
        await wait_until(pilot, lambda: "nobody-has-this-name" in screen_text(app))
        await command(pilot, "/export nowhere/a.md")
        await wait_until(pilot, lambda: "nowhere" in screen_text(app))


async def test_chat_that_cannot_be_saved_is_exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> NoReturn:
        raise StoreError("chats.db: the disk is full")

    async with chat(folder=tmp_path) as (pilot, app, _answerer):
        with monkeypatch.context() as full_disk:
            full_disk.setattr(ChatStore, "__init__", fail)
            await ask_and_wait(pilot)
            await command(pilot, "/export a.md")
            await wait_until(pilot, (tmp_path / "a.md").exists)
            assert "It is." in (tmp_path / "a.md").read_text()
            await command(pilot, "/rename new")
            await wait_until(pilot, lambda: "✗ this chat is not saved" in screen_text(app))
        await command(pilot, "/export b.json")
        await wait_until(pilot, (tmp_path / "b.json").exists)
        assert "✗ saving works again" not in screen_text(app)
        assert "saving works again" in screen_text(app)


async def test_delete() -> None:
    async with chat() as (pilot, app, _answerer):
        await ask_and_wait(pilot)
        await command(pilot, "/delete")
        await wait_until(pilot, lambda: "cannot be brought back" in screen_text(app))
        await pilot.press("y")
        await wait_until(pilot, lambda: texts(app) == [])
        assert await app.talk.run_in_store(ChatStore.sessions) == []
        assert app.query_one("#welcome").display


async def test_latest_chat_continues_after_quitting(home: Path, tmp_path: Path) -> None:
    chats = home / "data" / "chats.db"
    async with chat(folder=tmp_path, chats=chats) as (pilot, _, _):
        await ask_and_wait(pilot, "how do boxes stack?")
        await pilot.press("ctrl+q")
    async with chat(folder=tmp_path, chats=chats, resume=LATEST) as (pilot, app, answerer):
        await wait_until(pilot, lambda: texts(app) == ["how do boxes stack?", "It is."])
        await wait_until(pilot, lambda: "84/1 000" in screen_text(app))
        await ask_and_wait(pilot, "and trees?")
        assert len(answerer.requests[-1][0]) == 3
