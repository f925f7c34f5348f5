"""What a user runs into at the edges: a key too many, a name too long, a folder that cannot be used."""

from pathlib import Path

import pytest

from localdflash.chat.answer_sources import SharedDaemon
from localdflash.tui.app_base import ChatStart
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


async def test_a_home_that_is_no_folder_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from localdflash.server.engine_spec import EngineSpec

    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALDFLASH_HOME", str(tmp_path / "file" / "home"))
    app = ChatApp(ChatStart(SharedDaemon(EngineSpec({})), tmp_path, None))
    async with playing(app, (200, 30)) as pilot:
        await wait_until(pilot, lambda: "LOCALDFLASH_HOME" in shown(app))
        assert "✗" in shown(app)
        assert "sending a message tries again" in " ".join(shown(app).split())


async def test_an_operation_of_the_system_that_fails_is_one_line() -> None:
    async with chat(*ANSWER) as (pilot, app, _answerer):
        await answered(pilot)

        async def version(step: int) -> bool:
            raise PermissionError(13, "Permission denied", "/chats")

        app.talk.version = version  # type: ignore[method-assign]
        await pilot.press("alt+left")
        await wait_until(pilot, lambda: "Permission denied: /chats" in shown(app))
