"""The help and docs/chat.md say what the table of commands says, no more and no less."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.binding import Binding
from textual.pilot import Pilot

from localdflash.tui.commands import COMMANDS
from localdflash.tui.screens.help_screen import KEYS, HelpScreen, help_text, key_name, sections
from tests.tui.stage import Script, Stage, play, shown


def with_help(script: Script, size: tuple[int, int] = (120, 40)) -> Stage:
    app = Stage(screen=HelpScreen)
    asyncio.run(play(app, script, size))
    return app


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_and_key_is_there(command: Any) -> None:
    typed = {usage: does for _, entries in sections() for usage, does in entries}
    usage = next(usage for usage in typed if usage.split(", ")[0] == command.usage)
    assert usage.split(", ")[1:] == [*(f"/{name}" for name in command.aliases), *map(key_name, command.keys)]
    assert typed[usage] == command.help
    for words in ("", command.usage):
        rows = help_text(words, 110).plain
        assert command.usage in rows
        assert all(key_name(key) in rows for key in command.keys)


@pytest.mark.parametrize("width", [20, 36, 71, 110])
def test_nothing_is_wider_than_there_is_room_where_it_stands_side_by_side(width: int) -> None:
    rows = help_text("", width).plain.split("\n")
    if width >= 75:
        assert max(map(cell_len, rows)) <= width
    assert len(rows) >= len(COMMANDS)


def test_keys_are_written_as_on_a_keyboard() -> None:
    assert [key_name(key) for key in ("escape", "ctrl+r", "alt+left", "f1", "pageup")] == [
        "Esc",
        "Ctrl+R",
        "Alt+Left",
        "F1",
        "PgUp",
    ]


def test_keys_of_the_app_are_not_explained_twice() -> None:
    apps = {key_name(key) for command in COMMANDS for key in command.keys} - {"Esc"}
    explained = {key for entries in KEYS.values() for keys, _ in entries for key in keys.split(", ")}
    assert not apps & explained


def test_every_key_of_the_messages_is_explained() -> None:
    from localdflash.tui.transcript import Transcript

    explained = " ".join(keys for keys, _ in KEYS["In the messages"])
    for binding in Binding.make_bindings(Transcript.BINDINGS):
        key = {"left_square_bracket": "[", "right_square_bracket": "]"}.get(binding.key, binding.key)
        assert key.isdecimal() or key in explained or key_name(key) in explained


def test_typing_narrows_it() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        assert "/retry" in shown(pilot.app)
        await pilot.press(*"block n")
        await pilot.pause()
        assert "/code [N]" in shown(pilot.app)
        assert "/retry" not in shown(pilot.app)
        await pilot.press(*"xyz")
        await pilot.pause()
        assert "Nothing has these words." in shown(pilot.app)

    with_help(script)


@pytest.mark.parametrize("key", ["escape", "f1"])
def test_it_closes(key: str) -> None:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press(key)
        await pilot.pause()
        assert "Commands and keys" not in shown(pilot.app)

    assert with_help(script).results == [None]


@pytest.mark.parametrize("size", [(120, 20), (40, 12), (20, 5)])
def test_arrows_and_pages_scroll_to_the_last_line(size: tuple[int, int]) -> None:
    async def script(pilot: Pilot[Any]) -> None:
        assert "Close a dialog" not in shown(pilot.app)
        await pilot.press("down")
        await pilot.pause()
        assert pilot.app.screen.query_one("#all").scroll_offset.y == 1
        text = pilot.app.screen.query_one("#all")
        while text.scroll_offset.y < text.max_scroll_y:
            before = text.scroll_offset.y
            await pilot.press("pagedown")
            await pilot.pause()
            assert text.scroll_offset.y > before
        assert "dialog." in shown(pilot.app)
        await pilot.press("up", "pageup")

    with_help(script, size)


def test_the_page_for_users_has_exactly_the_commands_of_the_table(root: Path) -> None:
    page = (root / "docs" / "chat.md").read_text()
    rows = re.findall(r"^\| `(/[^`]+)` \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
    assert [(usage, keys.strip(), does.strip()) for usage, keys, does in rows] == [
        (command.usage, ", ".join(map(key_name, command.keys)), command.help) for command in COMMANDS
    ]
    for command in COMMANDS:
        assert all(f"`/{alias}`" in page for alias in command.aliases)


def test_the_page_names_every_theme_and_where_things_are(root: Path) -> None:
    from localdflash.chat.sampling_settings import SETTINGS
    from localdflash.tui.themes import THEMES

    page = (root / "docs" / "chat.md").read_text()
    for name in (*THEMES, *SETTINGS, "chats.db", "--no-log", "--continue", "--resume", "--plain", "--jsonl"):
        assert name in page
