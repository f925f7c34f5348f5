"""Full context in the whole app: the oldest messages are left out or summarised."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from textual import events
from textual.pilot import Pilot

from localdflash.base.errors import ContextOverflow, EngineDisconnect
from localdflash.chat.answerer import AnswerPiece, Done
from localdflash.tui.chat_app import ChatApp
from localdflash.tui.screens import dialog
from tests.support.fake_answerer import ANSWER, NUMBERS, STEP
from tests.tui.chat_stage import ask_and_wait, chat, command, screen_text, texts, type_and_send, wait_until


async def overflow(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
    """Ask three questions, the last of which does not fit into the context."""
    await ask_and_wait(pilot, "one?", "two?")
    answerer.script, answerer.tokens = [ContextOverflow("the prompt has 1100 tokens")], 200
    await type_and_send(pilot, "three?")
    await wait_until(pilot, lambda: app.is_covered)


@pytest.mark.parametrize("agreed", [True, False])
async def test_full_context_offers_to_drop_messages(agreed: bool) -> None:
    async with chat() as (pilot, app, answerer):
        await overflow(pilot, app, answerer)
        assert "oldest 2 of 5 messages" in screen_text(app).replace("\n", " ")
        answerer.script = list(ANSWER)
        if agreed:
            await pilot.press("y")
            await wait_until(pilot, lambda: len(texts(app)) == 6 and not app.talk.is_answering)
            assert [message.text for message in answerer.requests[-1][0]] == ["two?", "It is.", "three?"]
            assert "no longer sent" in screen_text(app)
            assert app.talk.dropped == 2
        else:
            await pilot.press("escape")
            await wait_until(pilot, lambda: app.prompt.text == "three?")
            assert len(texts(app)) == 4


async def test_full_context_can_be_summarised() -> None:
    async with chat() as (pilot, app, answerer):
        await overflow(pilot, app, answerer)
        answerer.script = [AnswerPiece("<think>\nHm.\n</think>\n\nWe talked", STEP), Done("stop", NUMBERS)]
        await pilot.press("s")
        await wait_until(pilot, lambda: "instead of the oldest 2 messages" in screen_text(app))
        asked, _, _ = answerer.requests[-1]
        assert [message.text for message in asked[:-1]] == ["one?", "It is."]
        assert "Summarise" in asked[-1].text
        assert app.screen.waits_for_quiet  # type: ignore[attr-defined]
        answerer.script = list(ANSWER)
        await pilot.press(*" of it", "ctrl+s")
        await wait_until(pilot, lambda: len(texts(app)) == 6 and not app.talk.is_answering)
        sent, system, _ = answerer.requests[-1]
        assert [message.text for message in sent] == ["two?", "It is.", "three?"]
        assert system == "Summary of the conversation up to here:\n\nWe talked of it"
        await wait_until(pilot, lambda: "a summary is sent instead of the 2 messages" in screen_text(app))
        await command(pilot, "/new")
        await ask_and_wait(pilot, "else?")
        assert answerer.requests[-1][1] == ""


@pytest.mark.parametrize("how", ["closed", "stopped", "failed"])
async def test_rejected_summary_returns_the_question(how: str) -> None:
    async with chat() as (pilot, app, answerer):
        await overflow(pilot, app, answerer)
        script = {"closed": ANSWER, "stopped": [None], "failed": [EngineDisconnect("the daemon stopped")]}
        expected = {"closed": "not sent", "stopped": "not sent", "failed": "the daemon stopped"}
        answerer.script = list(script[how])
        await pilot.press("s")
        if how == "stopped":
            await answerer.waits.wait()
            await pilot.press("escape")
        elif how == "closed":
            await wait_until(pilot, lambda: "instead of the oldest" in screen_text(app))
            await pilot.press("escape")
        await wait_until(pilot, lambda: app.prompt.text == "three?")
        await wait_until(pilot, lambda: f"{expected[how]}; your message is back in the prompt" in screen_text(app))
        assert len(texts(app)) == 4
        assert (app.talk.summary, app.talk.dropped, app.chats_loading) == ("", 0, 0)


@pytest.mark.parametrize(("key", "left"), [("ctrl+n", []), ("ctrl+r", ["one?", "It is.", "two?", "It is."])])
async def test_new_chat_or_retry_stops_the_summary(key: str, left: list[str]) -> None:
    async with chat() as (pilot, app, answerer):
        await overflow(pilot, app, answerer)
        answerer.script = [None]
        await pilot.press("s")
        await answerer.waits.wait()
        answerer.script = list(ANSWER)
        await pilot.press(key)
        await wait_until(pilot, lambda: app.prompt.text == "three?" and not app.chats_loading)
        await wait_until(pilot, lambda: texts(app) == left)
        assert not app.is_covered


async def test_message_sent_while_the_context_is_measured_is_queued() -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot, "one?", "two?")
        begins, is_measured, count = asyncio.Event(), asyncio.Event(), answerer.count

        async def count_later(*messages: Any, **options: Any) -> int | None:
            begins.set()
            await is_measured.wait()
            return cast("int | None", await count(*messages, **options))

        answerer.count, answerer.script = count_later, [ContextOverflow("the prompt has 1100 tokens")]
        answerer.tokens = 200
        await type_and_send(pilot, "three?")
        await begins.wait()
        await type_and_send(pilot, "four?")
        assert [text for text, _ in app.queued] == ["four?"]
        is_measured.set()
        await wait_until(pilot, lambda: app.is_covered)
        answerer.script = list(ANSWER)
        await pilot.press("y")
        await wait_until(pilot, lambda: len(texts(app)) == 8 and not app.talk.is_answering)
        assert texts(app)[4:] == ["three?", "It is.", "four?", "It is."]


async def test_keys_typed_before_a_dialog_go_to_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(dialog, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(dialog, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    async with chat() as (pilot, app, answerer):
        await overflow(pilot, app, answerer)
        await pilot.press("y", "e", "s", "x", "backspace", "enter", "escape", "tab")
        app.post_message(events.Paste(" and more"))
        await pilot.pause()
        assert app.is_covered
        assert app.prompt.text == "yes and more"
        clock[0] += 0.4
        await pilot.press("n")  # still typing
        clock[0] += 0.4
        await pilot.press("y")
        assert app.is_covered
        assert app.prompt.text == "yes and moreny"
        clock[0] += 0.6
        answerer.script = list(ANSWER)
        await pilot.press("tab", "y")
        await wait_until(pilot, lambda: len(texts(app)) == 6 and not app.talk.is_answering)
        assert app.prompt.text == "yes and moreny"


async def test_answer_that_fills_the_context_cannot_continue() -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot, "one?", "two?")
        answerer.script, answerer.tokens = [ContextOverflow("the prompt has 1100 tokens")], 600
        await pilot.press("ctrl+g")
        await wait_until(pilot, lambda: "cannot continue: question and answer fill the context" in screen_text(app))
        assert not app.is_covered
        assert texts(app) == ["one?", "It is.", "two?", "It is."]
