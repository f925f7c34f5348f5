"""Speed, settings, themes, palette and quitting in the whole app, by keys and commands."""

import webbrowser
from pathlib import Path

import pytest
from rich.segment import Segments
from textual import events
from textual.command import CommandPalette

from localdflash.chat.answerer import AnswerPiece, Done
from localdflash.tui import saved_state
from localdflash.tui.commands import COMMANDS
from localdflash.tui.themes import DEFAULT, THEMES
from localdflash.tui.transcript import Transcript
from tests.support.fake_answerer import ANSWER, STEP
from tests.tui.chat_stage import ask_and_wait, chat, command, screen_text, type_and_send, wait_until


async def test_drafting_can_be_turned_off() -> None:
    async with chat() as (pilot, app, _answerer):
        await pilot.press("f4")
        await wait_until(pilot, lambda: not app.talk.settings.draft)
        await wait_until(pilot, lambda: "drafting off" in screen_text(app))
        await command(pilot, "/draft on")
        assert app.talk.settings.draft


async def test_invalid_statistics_are_left_out() -> None:
    numbers = {"tokens_per_second": 58, "tau": "x", "drafted": "x", "accepted": [], "ttft_ms": {}}
    async with chat(AnswerPiece("So."), Done("stop", numbers)) as (pilot, app, _answerer):
        await ask_and_wait(pilot)
        await wait_until(pilot, lambda: app.status_bar.line.endswith("58 tok/s avg"))


async def test_bench_compares_drafting() -> None:
    async with chat() as (pilot, app, _answerer):
        await pilot.press("f5")
        await wait_until(pilot, lambda: "there is no message yet" in screen_text(app))
        await ask_and_wait(pilot)
        await command(pilot, "/bench")
        await wait_until(pilot, lambda: "same, to the byte" in screen_text(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.is_covered)


async def test_set_and_think_commands() -> None:
    async with chat() as (pilot, app, _answerer):
        await command(pilot, "/set temperature 0.5")
        assert app.talk.settings.temperature == 0.5
        await command(pilot, "/set temperature hot")
        await wait_until(pilot, lambda: "expected a number from 0 to 10" in screen_text(app))
        await command(pilot, "/set")
        await wait_until(pilot, lambda: "temperature 0.5, top_k auto: 0, top_p auto: 1" in screen_text(app))
        await command(pilot, "/think off")
        assert not app.talk.settings.thinking


async def test_role_and_system_commands() -> None:
    async with chat() as (pilot, app, answerer):
        await command(pilot, "/role reviewer")
        await wait_until(pilot, lambda: bool(app.talk.system))
        await ask_and_wait(pilot)
        assert answerer.requests[-1][1] == app.talk.system
        await command(pilot, "/role none")
        await wait_until(pilot, lambda: not app.talk.system)
        await command(pilot, "/role revewer")
        await wait_until(pilot, lambda: "reviewer" in screen_text(app).rpartition("revewer")[2])
        await command(pilot, "/system Be brief.")
        await wait_until(pilot, lambda: app.talk.system == "Be brief.")
        await command(pilot, "/role")
        await wait_until(pilot, lambda: app.is_covered)
        await pilot.press("enter")
        await wait_until(pilot, lambda: not app.talk.system)


async def test_themes(home: Path) -> None:
    async with chat(chats=home / "data" / "chats.db") as (pilot, app, _answerer):
        for name in list(THEMES)[-2:]:
            await command(pilot, f"/theme {name}")
            assert app.theme == saved_state.load().theme == name
        await command(pilot, "/theme")
        assert app.theme == next(iter(THEMES))
        await command(pilot, "/theme dark")
        await wait_until(pilot, lambda: "no theme 'dark'" in screen_text(app))


async def test_no_color_leaves_only_default_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with chat(AnswerPiece("```python\nx = 1\n```\n", STEP), ANSWER[-1]) as (pilot, app, _answerer):
        await ask_and_wait(pilot)
        await command(pilot, f"/theme {DEFAULT}")
        await wait_until(pilot, lambda: "no theme has colours" in screen_text(app))
        await pilot.press("/", "t", "h")
        await wait_until(pilot, lambda: "▸ /think" in screen_text(app))
        segments = [segment for strip in app.screen._compositor.render_strips() for segment in strip if segment.style]
        colours = {colour for one in segments if one.style for colour in (one.style.color, one.style.bgcolor)}
        assert all(colour is None or colour.is_default for colour in colours)
        assert "/" in "".join(one.text for one in segments if one.style and one.style.reverse)  # the chosen command


async def test_without_a_log_nothing_is_written(home: Path) -> None:
    async with chat() as (pilot, _app, _answerer):
        await ask_and_wait(pilot)
        await command(pilot, "/theme")
        await pilot.press("ctrl+q")
    assert [path for path in home.rglob("*") if path.is_file()] == []


async def test_palette_has_every_command() -> None:
    async with chat() as (pilot, app, _answerer):
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


@pytest.mark.parametrize("name", ["attach", "find"])
async def test_missing_argument_is_asked_for_without_touching_the_draft(name: str, tmp_path: Path) -> None:
    (tmp_path / "box.py").write_text("x = 1\n")
    async with chat(folder=tmp_path) as (pilot, app, _answerer):
        app.prompt.text = "a draft"
        app.run_command(next(one for one in COMMANDS if one.name == name), "")
        await wait_until(pilot, lambda: app.is_covered)
        await pilot.press(*"box.py", "enter")
        expected = {"attach": "box.py 6 bytes", "find": "box.py: not found in this chat"}
        await wait_until(pilot, lambda: expected[name] in screen_text(app))
        assert app.prompt.text == "a draft"


@pytest.mark.parametrize("size", [(40, 4), (100, 30)])
async def test_page_keys_before_the_palette_has_a_row(size: tuple[int, int]) -> None:
    async with chat(size=size) as (pilot, app, _answerer):
        for key in ("ctrl+p", "pagedown", "pageup"):
            app.post_message(events.Key(key, None))  # without a pause between two keys
        await wait_until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await pilot.press("pagedown", "pageup", "escape")
        await wait_until(pilot, lambda: not app.is_covered)


async def test_palette_does_not_open_over_a_dialog() -> None:
    async with chat() as (pilot, app, _answerer):
        await command(pilot, "/system")
        await wait_until(pilot, lambda: app.is_covered)
        dialog = app.screen
        await pilot.press("ctrl+p")
        await pilot.pause()
        assert app.screen is dialog


@pytest.mark.parametrize("how", ["ctrl+q", "/exit"])
async def test_quitting_keeps_the_partial_answer(how: str) -> None:
    async with chat(AnswerPiece("It ", STEP), None) as (pilot, app, answerer):
        await type_and_send(pilot, "why?")
        await answerer.waits.wait()
        await (command(pilot, how) if how.startswith("/") else pilot.press(how))
        await wait_until(pilot, lambda: app.return_value == 0)
        assert answerer.closed == 1
        assert app.talk.messages[-1].text == "It "


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("debug", [False, True])
async def test_internal_error_is_one_line(debug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    panics: list[str] = []
    with pytest.raises(Exception, match="NoneType"):  # noqa: PT012
        async with chat(debug=debug) as (pilot, app, _):
            await ask_and_wait(pilot)
            monkeypatch.setattr(app.talk, "show_version", None)
            await pilot.press("alt+left")
            await wait_until(pilot, lambda: bool(app._exit_renderables))
            panics.extend(
                "".join(part.text for part in one.segments)
                for one in app._exit_renderables
                if isinstance(one, Segments)
            )
    assert ("Traceback" in panics[0]) is debug
    line = "localdflash: internal error: TypeError: 'NoneType' object is not callable; the chat is saved;"
    assert debug or " ".join(panics[0].split()) == f"{line} --debug shows the traceback"


async def test_small_terminals() -> None:
    async with chat(size=(40, 15)) as (pilot, app, _):
        assert "╭" not in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: "╭" in screen_text(app))
        await ask_and_wait(pilot)
        for size in ((1, 1), (3, 40), (40, 1)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert app.is_running


async def test_clicked_link_opens_a_graphical_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    browser = webbrowser.GenericBrowser("firefox")

    def open_url(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(browser, "open", open_url)
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    async with chat() as (pilot, app, _answerer):
        app.transcript.post_message(Transcript.LinkClick("https://x.org/a"))
        await wait_until(pilot, lambda: opened == ["https://x.org/a"])
        browser.name = "lynx"
        app.transcript.post_message(Transcript.LinkClick("https://x.org/b"))
        await wait_until(pilot, lambda: "no browser found to open https://x.org/b" in screen_text(app))
    assert opened == ["https://x.org/a"]
