"""The engine reads a message while it is being written."""

import asyncio
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.chat.messages import Attachment
from localdflash.tui.actions import answer_actions
from localdflash.tui.chat_app import ChatApp
from tests.tui.chat_stage import answered, on_stage, wait_until


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_actions, "AHEAD", 0.02)


def test_what_is_typed_is_read_after_what_was_said() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot, "why?")
        answerer.read.clear()
        await pilot.press(*"How so")
        await wait_until(pilot, lambda: bool(answerer.read) and answerer.read[-1][-1].text == "How so")
        *before, draft = answerer.read[-1]
        assert before == app.talk.messages
        assert (draft.role, draft.text) == ("user", "How so")
        assert len(app.talk.messages) == 2
        count = len(answerer.read)
        await pilot.pause(0.2)
        assert len(answerer.read) == count  # once

    on_stage(script)


def test_what_is_attached_is_read_too() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        pasted = Attachment("paste", "pasted 1", "x = 1\n" * 99)
        app.prompt.put_back("", [pasted])
        await pilot.press("a")
        await wait_until(pilot, lambda: bool(answerer.read))
        assert [(one.text, one.attachments) for one in answerer.read[-1]] == [("a", (pasted,))]

    on_stage(script)


@pytest.mark.parametrize(("sent", "stopped"), [("Why not?", []), ("Where?", ["Why"])])
def test_what_is_not_sent_is_not_read_on(sent: str, stopped: list[str]) -> None:
    ended = list[str]()

    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        async def never_done(messages: Any, *_: Any, **__: Any) -> None:
            answerer.read.append(messages)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(messages[-1].text)
                raise

        answerer.read_ahead = never_done
        app.prompt.text = "Why"
        await wait_until(pilot, lambda: bool(answerer.read))
        await answered(pilot, sent)
        assert ended == stopped

    on_stage(script)


def test_commands_and_names_of_files_are_not_read() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        for text in ("/ne", "see @a.py", "  "):
            app.prompt.text = text
            await pilot.pause(0.1)
        assert answerer.read == []

    on_stage(script)


def test_nothing_is_read_beside_an_answer() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        app.ask("why?")
        await answerer.waits.wait()
        answerer.read.clear()
        await pilot.press(*"next")
        await pilot.pause(0.1)
        assert answerer.read == []

    on_stage(script, None)
