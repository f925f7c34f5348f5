"""What a user runs into at the edges: a key too many, a name too long, a folder that cannot be used."""

import asyncio
from pathlib import Path

import pytest

from localdflash.chat.answer_sources import SharedDaemon
from localdflash.tui.app_base import Start
from localdflash.tui.chat_app import ChatApp
from tests.support.fake_answerer import ANSWER
from tests.tui.chat_stage import answered, chat, shown, wait_until
from tests.tui.stage import playing


async def test_a_message_that_is_not_changed_after_all_comes_back_with_its_answer() -> None:
    async with chat() as (pilot, app, _answerer):
        await answered(pilot, "why?")
        before = list(app.talk.messages)
        await pilot.press("up")
        await wait_until(pilot, lambda: not app.talk.messages)
        assert app.prompt.text == "why?"
        assert "Esc leaves the chat as it was" in shown(app)
        await pilot.press("escape")
        assert app.talk.messages == before
        assert app.prompt.text == ""
        assert "It is." in shown(app)
        await pilot.press("escape")
        assert app.talk.messages == before


async def test_esc_after_another_chat_was_begun_brings_nothing_back() -> None:
    async with chat() as (pilot, app, _answerer):
        await answered(pilot, "why?")
        await pilot.press("up")
        await wait_until(pilot, lambda: app.prompt.text == "why?")
        await pilot.press("ctrl+n")
        await pilot.pause()
        await pilot.press("escape")
        assert app.talk.messages == []


async def test_a_count_that_comes_late_is_not_taken_for_what_the_answer_told() -> None:
    async with chat() as (pilot, app, answerer):
        await answered(pilot)
        may_end = asyncio.Event()

        async def counted(*_: object, **__: object) -> int:
            await may_end.wait()
            return 7

        answerer.count = counted
        counting = asyncio.create_task(app.talk.count())
        await answered(pilot, "and now?")
        used = app.talk.used
        may_end.set()
        await counting
        assert app.talk.used == used != 7


async def test_leaving_twice_waits_for_the_first() -> None:
    async with chat() as (pilot, app, _):
        await answered(pilot)
        may_end, closing = asyncio.Event(), asyncio.Event()

        async def close() -> None:
            closing.set()
            await may_end.wait()

        app.talk.close = close  # type: ignore[method-assign]
        first = asyncio.create_task(app.action_quit())
        await closing.wait()
        await app.action_quit()
        assert app.is_running
        may_end.set()
        await first
    assert app.return_code == 0


async def test_a_home_that_is_no_folder_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from localdflash.server.wanted import Wanted

    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALDFLASH_HOME", str(tmp_path / "file" / "home"))
    app = ChatApp(Start(SharedDaemon(Wanted({})), tmp_path, None))
    async with playing(app, (200, 30)) as pilot:
        await wait_until(pilot, lambda: "LOCALDFLASH_HOME" in shown(app))
        assert "✗" in shown(app)
        assert "a message you send tries again" in " ".join(shown(app).split())


async def test_an_operation_of_the_system_that_fails_is_one_line() -> None:
    async with chat(*ANSWER) as (pilot, app, _answerer):
        await answered(pilot)

        async def version(step: int) -> bool:
            raise PermissionError(13, "Permission denied", "/chats")

        app.talk.version = version  # type: ignore[method-assign]
        await pilot.press("alt+left")
        await wait_until(pilot, lambda: "Permission denied: /chats" in shown(app))
