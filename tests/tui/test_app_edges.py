"""What a user runs into at the edges: a key too many, a name too long, a folder that cannot be used."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import OptionList

from localdflash.base.errors import EngineGone
from localdflash.chat.answer_sources import SharedDaemon
from localdflash.tui.app_base import Start
from localdflash.tui.chat_app import ChatApp
from tests.support.fake_answerer import ANSWER
from tests.tui.chat_stage import answered, command, on_stage, shown, typed, wait_until
from tests.tui.stage import play


def test_a_message_that_is_not_changed_after_all_comes_back_with_its_answer() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
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

    on_stage(script)


def test_a_message_that_was_changed_stays_in_the_prompt() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot, "why?")
        await pilot.press("up")
        await wait_until(pilot, lambda: app.prompt.text == "why?")
        await pilot.press("end", "x", "escape")
        assert len(app.talk.messages) == 2
        assert app.prompt.text == "why?x"

    on_stage(script)


def test_esc_after_another_chat_was_begun_brings_nothing_back() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot, "why?")
        await pilot.press("up")
        await wait_until(pilot, lambda: app.prompt.text == "why?")
        await pilot.press("ctrl+n")
        await pilot.pause()
        await pilot.press("escape")
        assert app.talk.messages == []

    on_stage(script)


@pytest.mark.parametrize("key", ["e", "f"])
def test_after_a_key_on_a_message_one_types_into_the_prompt(key: str) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        await pilot.press("tab", "k")
        assert app.focused is app.transcript
        await pilot.press(key)
        await wait_until(pilot, lambda: app.focused is app.prompt)

    on_stage(script)


def test_the_numbers_of_one_chat_are_not_shown_for_another() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        assert "50 tok/s" in app.status_bar.line
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: not app.talk.messages)
        await pilot.pause()
        assert app.status_bar.line == "tiny"

    on_stage(script)


def test_the_context_of_a_fork_is_counted() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        await command(pilot, "/fork 1")
        await wait_until(pilot, lambda: "42/1 000" in app.status_bar.line)

    on_stage(script)


def test_a_count_that_comes_late_is_not_taken_for_what_the_answer_told() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
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

    on_stage(script)


@pytest.mark.parametrize("number", ["9" * 5000, "٣", "x" * 3000])
def test_a_fork_at_no_message_is_one_line(number: str) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        session = app.talk.session
        await command(pilot, f"/fork {number}")
        await wait_until(pilot, lambda: "✗" in shown(app))
        assert app.talk.session == session

    on_stage(script)


def test_the_palette_names_what_follows_a_command() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await pilot.press("ctrl+p")
        await wait_until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await wait_until(pilot, lambda: "/copy [N]" in prompts(app))
        await pilot.press(*"draft")
        await wait_until(pilot, lambda: "/draft [on|off]" in prompts(app) and "/rename" not in prompts(app))

    def prompts(app: ChatApp) -> str:
        options = app.screen.query_one(OptionList).options
        return "\n".join(str(option.prompt) for option in options)

    on_stage(script)


def test_leaving_twice_waits_for_the_first() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
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

    app = on_stage(script)
    assert app.return_code == 0


def test_what_was_said_to_be_wrong_stays_when_no_answer_can_begin() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        answer = app.talk.answer

        async def complaining(*given: Any, **names: Any) -> Any:
            app.complain("chats are not kept: the disk is gone")
            return await answer(*given, **names)

        app.talk.answer = complaining  # type: ignore[method-assign]
        await typed(pilot, "why?")
        await wait_until(pilot, lambda: "Ctrl+R asks again" in shown(app))
        assert shown(app).count("the disk is gone") == 1

    on_stage(script, EngineGone("there is none"))


def test_a_home_that_is_no_folder_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from localdflash.server.wanted import Wanted

    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALDFLASH_HOME", str(tmp_path / "file" / "home"))
    app = ChatApp(Start(SharedDaemon(Wanted({})), tmp_path, None))

    async def script(pilot: Pilot[Any]) -> None:
        await wait_until(pilot, lambda: "LOCALDFLASH_HOME" in shown(app))
        assert "✗" in shown(app)
        assert "a message you send tries again" in " ".join(shown(app).split())

    asyncio.run(play(app, script, (200, 30)))


def test_an_operation_of_the_system_that_fails_is_one_line() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)

        async def version(step: int) -> bool:
            raise PermissionError(13, "Permission denied", "/chats")

        app.talk.version = version  # type: ignore[method-assign]
        await pilot.press("alt+left")
        await wait_until(pilot, lambda: "Permission denied: /chats" in shown(app))

    on_stage(script, *ANSWER)


def test_what_fits_on_this_machine_is_not_offered_where_a_server_answers() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        await pilot.press("ctrl+l")
        await wait_until(pilot, lambda: "http://127.0.0.1:9 answers as tiny; /model ID asks for another" in shown(app))
        await command(pilot, "/model big")
        await wait_until(pilot, lambda: "big is loaded" in shown(app))

    on_stage(script, server="http://127.0.0.1:9")


def test_notices_do_not_cover_the_prompt() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: "Ctrl+C again leaves" in shown(app))
        rows = shown(app).split("\n")
        assert any("Ctrl+C again leaves" in row for row in rows[: len(rows) // 2])

    on_stage(script)


def test_a_name_is_told_as_it_is_kept() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        app.action_rename("n" * 10_000)
        await wait_until(pilot, lambda: "is now called nnn" in shown(app))
        assert shown(app).count("n") < 1000

    on_stage(script)
