"""The engine reads a message while it is being written."""

import asyncio
from typing import Any

import pytest

from localdflash.tui.actions import answer_actions
from tests.tui.chat_stage import answered, chat, wait_until


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_actions, "READ_AHEAD_SECONDS", 0.02)


async def test_what_is_typed_is_read_after_what_was_said() -> None:
    async with chat() as (pilot, app, answerer):
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


@pytest.mark.parametrize(("sent", "stopped"), [("Why not?", []), ("Where?", ["Why"])])
async def test_what_is_not_sent_is_not_read_on(sent: str, stopped: list[str]) -> None:
    ended = list[str]()
    async with chat() as (pilot, app, answerer):

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


async def test_nothing_is_read_beside_an_answer() -> None:
    async with chat(None) as (pilot, app, answerer):
        app.ask("why?")
        await answerer.waits.wait()
        answerer.read.clear()
        await pilot.press(*"next")
        await pilot.pause(0.1)
        assert answerer.read == []
