"""Asking, stopping and retrying in the whole app, by keys and commands."""

import asyncio
import itertools
from pathlib import Path
from typing import NoReturn

import pytest
from textual import events

from localdflash.base.errors import ContextOverflow, EngineDisconnect, NoDevice
from localdflash.chat.answer_sources import SharedDaemon
from localdflash.chat.answerer import AnswerPiece, Done
from localdflash.chat.messages import Attachment
from localdflash.server.engine_spec import EngineSpec
from localdflash.tui.app_base import ChatStart
from localdflash.tui.chat_app import ChatApp
from tests.support.fake_answerer import NUMBERS, STEP
from tests.tui.chat_stage import ask_and_wait, chat, command, screen_text, texts, type_and_send, wait_until
from tests.tui.stage import run_app


@pytest.mark.parametrize("how", ["/stop", "ctrl+c"])
async def test_stop_keeps_the_partial_answer(how: str) -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot, "what?")
        answerer.script = [AnswerPiece("It ", STEP), None]
        await type_and_send(pilot, "why?")
        await answerer.waits.wait()
        if how == "/stop":
            await command(pilot, how)
        else:
            await pilot.press(how)
        await wait_until(pilot, lambda: not app.talk.is_answering)
        await pilot.pause()
        assert app.talk.messages[-1].finish == "cancelled"
        assert "stopped" in screen_text(app)
        assert answerer.closed == 2
        await wait_until(pilot, lambda: app.talk.context_tokens == 4 * answerer.tokens)


async def test_model_with_a_wrong_name_does_not_stop_the_answer() -> None:
    async with chat(AnswerPiece("It ", STEP), None) as (pilot, app, answerer):
        await type_and_send(pilot, "why?")
        await answerer.waits.wait()
        await pilot.press(*"/model", "space", *"wrong", "enter")
        await wait_until(pilot, lambda: "no pair 'wrong'" in screen_text(app))
        assert app.talk.is_answering
        await pilot.press(*"/model", "space", *"right", "enter")
        await wait_until(pilot, lambda: "right is loaded" in screen_text(app))
        assert app.talk.messages[-1].finish == "cancelled"


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_message_sent_while_a_model_loads_is_answered_by_that_model(is_cancelled: bool) -> None:
    async with chat() as (pilot, app, answerer):
        begins, is_loaded, load = asyncio.Event(), asyncio.Event(), answerer.load

        async def load_later(pair: str) -> object:
            begins.set()
            await is_loaded.wait()
            return await load(pair)

        answerer.load = load_later
        await command(pilot, "/model right")
        await begins.wait()
        await type_and_send(pilot, "why?")
        assert not answerer.requests
        assert "your message is sent when the model is loaded" in screen_text(app)
        if is_cancelled:
            await pilot.press("escape")
            await wait_until(pilot, lambda: app.prompt.text == "why?")
            assert not answerer.requests
            return
        is_loaded.set()
        await wait_until(pilot, lambda: texts(app) == ["why?", "It is."])
        assert "why?" in screen_text(app).partition("right is loaded")[2]


async def test_ctrl_c_clears_the_prompt_before_it_quits() -> None:
    async with chat() as (pilot, app, _answerer):
        await ask_and_wait(pilot)
        await pilot.press("up", "!")  # edits the message
        app.prompt.attach_output(Attachment("output", "ls", "a.py"))
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: not app.prompt.text)
        assert (app.prompt.attachments, texts(app)) == ((), ["why?", "It is."])
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: "Ctrl+C again quits" in screen_text(app))
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: app.return_code == 0)


async def test_retry_and_versions() -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot)
        answerer.script = [AnswerPiece("No.", None), Done("stop", NUMBERS)]
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: texts(app)[-1] == "No." and not app.talk.is_answering)
        assert texts(app) == ["why?", "No."]
        await pilot.press("alt+left")
        await wait_until(pilot, lambda: texts(app)[-1] == "It is.")
        await pilot.pause()
        assert "It is." in screen_text(app)
        await command(pilot, "/next")
        await wait_until(pilot, lambda: texts(app)[-1] == "No.")
        await command(pilot, "/next")
        await wait_until(pilot, lambda: "no later version" in screen_text(app))
        await command(pilot, "/previous")
        await pilot.press("alt+left")
        await wait_until(pilot, lambda: "no earlier version" in screen_text(app))


@pytest.mark.parametrize("error", [NoDevice("no driver"), ContextOverflow("too long")])
@pytest.mark.parametrize(("keys", "prompt"), [(["ctrl+r"], ""), (["up", "!", "enter"], "why?!")])
async def test_failed_retry_or_edit_keeps_the_previous_answer(keys: list[str], prompt: str, error: Exception) -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot)
        messages = list(app.talk.messages)
        answerer.script = [error]
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        await wait_until(pilot, lambda: f"{error}; the previous answer is kept" in screen_text(app))
        assert app.talk.messages == messages
        assert "It is." in screen_text(app)
        assert app.prompt.text == prompt


async def test_retry_of_a_chat_that_is_no_longer_shown_does_nothing() -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot, "one?")
        answerer.script = [AnswerPiece("Half ", STEP), None]
        await type_and_send(pilot, "two?")
        await answerer.waits.wait()
        app.action_retry()
        app.action_new()
        await wait_until(pilot, lambda: not app.talk.messages)
        await pilot.pause()
        assert len(answerer.requests) == 2
        assert not app.talk.is_answering


async def test_message_sent_during_an_answer_is_queued() -> None:
    async with chat(AnswerPiece("It ", STEP), None) as (pilot, app, answerer):
        await type_and_send(pilot, "why?")
        await answerer.waits.wait()
        await type_and_send(pilot, "and then?")
        assert "when this answer is done" in screen_text(app)
        assert len(answerer.requests) == 1
        await pilot.press("ctrl+y")
        await wait_until(pilot, lambda: app.clipboard == "It ")
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.prompt.text == "and then?")
        assert texts(app) == ["why?", "It "]


async def test_two_messages_in_one_read_are_answered_separately() -> None:
    async with chat() as (pilot, app, _answerer):
        await wait_until(pilot, lambda: not app.chats_loading)
        for key in ("a", "enter", "b", "enter"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await wait_until(pilot, lambda: len(texts(app)) == 4 and not app.talk.is_answering)
        assert texts(app) == ["a", "It is.", "b", "It is."]


@pytest.mark.parametrize(
    "end", [EngineDisconnect("the daemon stopped"), Done("gone", {}, EngineDisconnect("the daemon stopped"))]
)
async def test_lost_engine_is_reported_and_the_answer_can_continue(end: object) -> None:
    async with chat(AnswerPiece("It ", STEP), end) as (pilot, app, answerer):
        await type_and_send(pilot, "why?")
        await wait_until(pilot, lambda: "the daemon stopped; Ctrl+" in screen_text(app))
        assert texts(app) == ["why?", "It "]
        assert "It" in screen_text(app)
        answerer.script = [AnswerPiece("is.", None), Done("stop", NUMBERS)]
        await pilot.press("ctrl+g")
        await wait_until(pilot, lambda: texts(app) == ["why?", "It is."])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/continue", "this chat has no answer to continue"),
        ("/retry", "this chat has no message yet"),
    ],
)
async def test_impossible_commands_are_reported(line: str, expected: str) -> None:
    async with chat() as (pilot, app, answerer):
        await command(pilot, line)
        await wait_until(pilot, lambda: expected in screen_text(app))
        assert answerer.requests == []


async def test_cancelled_edit_restores_message_and_answer() -> None:
    async with chat() as (pilot, app, _answerer):
        await ask_and_wait(pilot, "why?")
        messages = list(app.talk.messages)
        await pilot.press("up")
        await wait_until(pilot, lambda: not app.talk.messages)
        assert app.prompt.text == "why?"
        assert "Esc leaves the chat as it was" in screen_text(app)
        await pilot.press("escape")
        assert app.talk.messages == messages
        assert app.prompt.text == ""
        assert "It is." in screen_text(app)
        await pilot.press("escape")
        assert app.talk.messages == messages


async def test_edit_takes_out_one_message_only() -> None:
    async with chat() as (pilot, app, _answerer):
        await ask_and_wait(pilot, "one?", "two?")
        for _ in range(2):
            app.post_message(events.Key("up", None))
        await wait_until(pilot, lambda: app.prompt.text == "two?")
        await pilot.pause()
        assert (texts(app), app.prompt.text) == (["one?", "It is."], "two?")
        await pilot.press("escape")
        assert (texts(app), app.prompt.text) == (["one?", "It is.", "two?", "It is."], "")


@pytest.mark.parametrize("key", ["e", "r"])
async def test_earlier_message_is_not_edited_or_retried(key: str) -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot, "one?", "two?")
        app.transcript.focus()
        await pilot.press("k", "k", "k", key)
        await wait_until(pilot, lambda: "message 2: only the last message can be edited or" in screen_text(app))
        assert (len(texts(app)), len(answerer.requests), app.prompt.text) == (4, 2, "")
        answerer.script = [AnswerPiece("No.", None), Done("stop", NUMBERS)]
        await pilot.press("j", key)  # the last question
        await wait_until(pilot, lambda: app.prompt.text == "two?" if key == "e" else texts(app)[-1] == "No.")


@pytest.mark.parametrize(("key", "expected"), [("ctrl+r", "No."), ("ctrl+g", "It is.No.")])
async def test_retry_and_continue_cancel_an_edit(key: str, expected: str) -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot, "one?", "two?")
        answerer.script = [AnswerPiece("No.", None), Done("stop", NUMBERS)]
        await pilot.press("up", key)
        await wait_until(pilot, lambda: texts(app)[-1] == expected and not app.talk.is_answering)
        assert texts(app) == ["one?", "It is.", "two?", expected]
        assert not app.is_editing
        assert app.prompt.text == ""


async def test_invalid_home_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALDFLASH_HOME", str(tmp_path / "file" / "home"))
    app = ChatApp(ChatStart(SharedDaemon(EngineSpec({})), tmp_path, None))
    async with run_app(app, (200, 30)) as pilot:
        await wait_until(pilot, lambda: "LOCALDFLASH_HOME" in screen_text(app))
        assert "✗" in screen_text(app)
        assert "sending a message tries again" in " ".join(screen_text(app).split())


async def test_failed_start_is_reported_once_and_tried_once(tmp_path: Path) -> None:
    """The question is sent while the daemon reloads its pair, which fails."""
    is_sent, opened = asyncio.Event(), itertools.count()

    class Source(SharedDaemon):
        async def open(self, *_: object) -> NoReturn:
            next(opened)
            await is_sent.wait()
            raise NoDevice("no driver")

    app = ChatApp(ChatStart(Source(EngineSpec({})), tmp_path, None))
    async with run_app(app) as pilot:
        await wait_until(pilot, lambda: not app.chats_loading)
        await type_and_send(pilot, "why?")
        is_sent.set()
        await wait_until(pilot, lambda: "no driver; Ctrl+R retries" in screen_text(app))
        await pilot.pause(0.1)
        assert screen_text(app).count("no driver") == 1
        assert "○ not connected" in screen_text(app)
        assert next(opened) == 1


async def test_typed_message_is_prefilled_after_the_conversation() -> None:
    async with chat() as (pilot, app, answerer):
        await ask_and_wait(pilot, "why?")
        answerer.read.clear()
        await pilot.press(*"How so")
        await wait_until(pilot, lambda: bool(answerer.read) and answerer.read[-1][-1].text == "How so")
        *sent, draft = answerer.read[-1]
        assert sent == app.talk.messages
        assert (draft.role, draft.text) == ("user", "How so")
        assert len(app.talk.messages) == 2
        count = len(answerer.read)
        await pilot.pause(0.2)
        assert len(answerer.read) == count  # sent only once
