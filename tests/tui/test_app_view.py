"""Speed, model, settings, looks, help, the way out: the whole app, by its keys and commands."""

from pathlib import Path
from typing import Any

import pytest
from rich.segment import Segments
from textual.pilot import Pilot

from localdflash.chat.answerer import AnswerPiece, Done
from localdflash.tui import saved_state
from localdflash.tui.chat_app import ChatApp
from localdflash.tui.commands import COMMANDS
from localdflash.tui.themes import THEMES
from tests.support.fake_answerer import NUMBERS, STEP
from tests.tui.chat_stage import answered, command, on_stage, shown, typed, wait_until


@pytest.mark.parametrize("how", ["f2", "/accepted"])
def test_the_acceptance_view(how: str) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        for tinted in (True, False):
            await (command(pilot, how) if how.startswith("/") else pilot.press(how))
            await pilot.pause()
            assert app.transcript.tinted is tinted
            assert ("dflash 1" in shown(app)) is tinted

    on_stage(script)


@pytest.mark.parametrize("how", ["f3", "/speed"])
@pytest.mark.parametrize("width", [70, 140])
def test_the_panel(how: str, width: int) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        await (command(pilot, how) if how.startswith("/") else pilot.press(how))
        await wait_until(pilot, lambda: "tokens a step" in shown(app))
        assert "why?" in shown(app)

    on_stage(script, size=(width, 40))


@pytest.mark.parametrize("how", ["f4", "/draft", "/draft off"])
def test_drafting_off(how: str) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await (command(pilot, how) if how.startswith("/") else pilot.press(how))
        await wait_until(pilot, lambda: not app.talk.settings.draft)
        await wait_until(pilot, lambda: "drafting off" in shown(app))
        await command(pilot, "/draft on")
        assert app.talk.settings.draft

    on_stage(script)


def test_plain_and_drafting_compared() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await pilot.press("f5")
        await wait_until(pilot, lambda: "nothing was asked yet" in shown(app))
        await answered(pilot)
        await command(pilot, "/bench")
        await wait_until(pilot, lambda: "same, to the byte" in shown(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.covered)

    on_stage(script)


def test_a_comparison_that_is_closed_stops() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        answerer.script = [AnswerPiece("It ", STEP), None]
        closed = answerer.closed
        await pilot.press("f5")
        await answerer.waits.wait()
        await pilot.press("escape")
        await wait_until(pilot, lambda: answerer.closed == closed + 1)

    on_stage(script)


def test_settings() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await command(pilot, "/set temperature 0.5")
        assert app.talk.settings.temperature == 0.5
        await command(pilot, "/set temperature hot")
        await wait_until(pilot, lambda: "expected a number from 0 to 10" in shown(app))
        await command(pilot, "/set")
        await wait_until(pilot, lambda: "temperature 0.5, top_k auto: 0, top_p auto: 1" in shown(app))
        await command(pilot, "/think off")
        assert not app.talk.settings.thinking

    on_stage(script)


def test_instructions() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await command(pilot, "/role reviewer")
        await wait_until(pilot, lambda: bool(app.talk.system))
        await answered(pilot)
        assert answerer.asked[-1][1] == app.talk.system
        await command(pilot, "/role none")
        await wait_until(pilot, lambda: not app.talk.system)
        await command(pilot, "/role revewer")
        await wait_until(pilot, lambda: "reviewer" in shown(app).rpartition("revewer")[2])
        await command(pilot, "/system Be brief.")
        await wait_until(pilot, lambda: app.talk.system == "Be brief.")
        await command(pilot, "/role")
        await wait_until(pilot, lambda: app.covered)
        await pilot.press("enter")
        await wait_until(pilot, lambda: not app.talk.system)

    on_stage(script)


def test_another_model() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await command(pilot, "/model other")
        await wait_until(pilot, lambda: "other is loaded: 2000 tokens" in shown(app))

    on_stage(script)


def test_thoughts_fold() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        assert "apples" not in shown(app)
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: "apples" in shown(app))
        await command(pilot, "/thoughts")
        await wait_until(pilot, lambda: "apples" not in shown(app))

    on_stage(script, AnswerPiece("<think>of apples</think>\n\nIt is."), Done("stop", NUMBERS))


def test_themes(home: Path) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        for name in THEMES:
            await command(pilot, f"/theme {name}")
            assert app.theme == saved_state.load().theme == name
        await command(pilot, "/theme")
        assert app.theme == next(iter(THEMES))
        await command(pilot, "/theme dark")
        await wait_until(pilot, lambda: "no theme 'dark'" in shown(app))

    on_stage(script, chats=home / "data" / "chats.db")


def test_without_a_log_nothing_is_written(home: Path) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        await command(pilot, "/theme")
        await pilot.press("ctrl+q")

    on_stage(script)
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("how", ["f1", "/help"])
def test_help(how: str) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await (command(pilot, how) if how.startswith("/") else pilot.press(how))
        await wait_until(pilot, lambda: "Commands and keys" in shown(app))
        await pilot.press("ctrl+n", "f2")  # keys of the chat do nothing here
        assert not app.transcript.tinted
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.covered)

    on_stage(script)


def test_the_palette_has_every_command() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"panel of")
        await pilot.press("escape")
        provider = next(iter(app.COMMANDS))(app.screen)
        assert [str(hit.display) for hit in [hit async for hit in provider.discover()]] == [
            command.usage for command in COMMANDS
        ]
        hits = [hit async for hit in provider.search("acceptance")]
        assert "/speed" in [hit.text or str(hit.match_display) for hit in hits]
        app.choose(next(one for one in COMMANDS if one.name == "rename"))
        assert app.prompt.text == "/rename "

    on_stage(script)


def test_scrolling_from_the_prompt() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        end = app.transcript.scroll_y
        await pilot.press("pageup")
        await wait_until(pilot, lambda: app.transcript.scroll_y < end)
        await pilot.press("pagedown")
        await wait_until(pilot, lambda: app.transcript.scroll_y == end)

    on_stage(script, AnswerPiece("line\n\n" * 100), Done("stop", NUMBERS))


@pytest.mark.parametrize("how", ["ctrl+q", "/quit", "/exit"])
def test_leaving_in_the_middle(how: str) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await typed(pilot, "why?")
        await answerer.waits.wait()
        await (command(pilot, how) if how.startswith("/") else pilot.press(how))
        await wait_until(pilot, lambda: app.return_value == 0)
        assert answerer.closed == 1
        assert app.talk.messages[-1].text == "It "

    on_stage(script, AnswerPiece("It ", STEP), None)


def test_ctrl_c_says_how_to_leave() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: "Ctrl+C again leaves" in shown(app))

    on_stage(script)


def test_the_first_run_is_explained_once(home: Path) -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await wait_until(pilot, lambda: saved_state.load().seen_welcome)
        seen.append(shown(app))

    seen: list[str] = []
    for _ in range(2):
        on_stage(script, chats=home / "data" / "chats.db")
    assert "localdflash models list" in seen[0]
    assert "localdflash models list" not in seen[1]
    assert "F1" in seen[1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("debug", [False, True])
def test_a_mistake_of_ours_is_one_line(debug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the values of no variables, unless they are asked for."""

    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        monkeypatch.setattr(app.talk, "version", None)
        await pilot.press("alt+left")
        await wait_until(pilot, lambda: bool(app._exit_renderables))
        told.extend(
            "".join(part.text for part in one.segments) for one in app._exit_renderables if isinstance(one, Segments)
        )

    told: list[str] = []
    with pytest.raises(Exception, match="NoneType"):
        on_stage(script, debug=debug)
    assert ("Traceback" in told[0]) is debug
    line = "localdflash: internal error: TypeError: 'NoneType' object is not callable; the chat is kept;"
    assert debug or " ".join(told[0].split()) == f"{line} --debug shows more"  # all of it, on however many rows


def test_what_a_command_says_is_brought_into_view() -> None:
    async def script(pilot: Pilot[Any], app: ChatApp, answerer: Any) -> None:
        await answered(pilot)
        for _ in range(40):
            app.say("a line of before")
        await pilot.press("tab", "home", "tab")
        await wait_until(pilot, lambda: "more below" in shown(app))
        app.say("nobody asked for this")
        await pilot.pause()
        assert "nobody asked for this" not in shown(app)
        await command(pilot, "/theme nope")
        await wait_until(pilot, lambda: "no theme 'nope'" in shown(app))

    on_stage(script)
