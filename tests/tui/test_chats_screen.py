"""Dialog with the earlier chats: keys, outdated and failed searches, hostile titles."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.base.errors import StoreError
from localdflash.chat.chat_listing import SessionInfo
from localdflash.tui.screens.chats_screen import ChatChoice, ChatPicker, Search
from tests.tui.stage import Stage, dialog, result_of, screen_text, wait_until

NOW = 1_700_000_000.0
CHATS = [
    SessionInfo(7, "A parser for dates", "/code", "embedded", "", NOW - 999, NOW - 120, 4, "def parse(text): …"),
    SessionInfo(5, "Sorting", "/code", "qwen3-4b", "", NOW, NOW - 90_000, 1, "sorted(rows)"),
    SessionInfo(3, "", "/code", "", "", NOW, NOW - 40 * 86_400, 2, ""),
]


async def search(words: str) -> Sequence[SessionInfo]:
    return [chat for chat in CHATS if words.lower() in f"{chat.title} {chat.excerpt}".lower()]


def open_picker(search_chats: Search = search) -> AbstractAsyncContextManager[tuple[Pilot[Any], Stage]]:
    return dialog(lambda: ChatPicker(search_chats, now=lambda: NOW))


@pytest.mark.parametrize(
    ("keys", "choice"),
    [
        (["pagedown", "enter"], ChatChoice("open", 3)),
        (["ctrl+d"], ChatChoice("delete", 7)),
        (["down", "ctrl+e"], ChatChoice("export", 5)),
        (["down", "ctrl+r"], ChatChoice("rename", 5)),
    ],
)
async def test_chat_picker_keys(keys: list[str], choice: ChatChoice | None) -> None:
    assert await result_of(lambda: ChatPicker(search, now=lambda: NOW), *keys) == [choice]


async def test_outdated_search_is_dropped_and_enter_waits_for_the_newest() -> None:
    may_finish = asyncio.Event()
    queries: list[str] = []

    async def slow(words: str) -> Sequence[SessionInfo]:
        queries.append(words)
        try:
            await may_finish.wait()
        except asyncio.CancelledError:  # returns outdated results nevertheless
            return CHATS[:1]
        return await search(words)

    async with open_picker(slow) as (pilot, app):
        await pilot.press(*"sort", "enter")
        await wait_until(pilot, lambda: queries[-1:] == ["sort"])
        assert "A parser" not in screen_text(app)
        may_finish.set()
        await wait_until(pilot, lambda: bool(app.results))
        await pilot.pause()
    assert app.results == [ChatChoice("open", 5, "sort")]
    assert len(queries) > 2


async def test_failed_search_is_a_one_line_note() -> None:
    async def fail(_: str) -> Sequence[SessionInfo]:
        raise StoreError("chats.db: the disk is full: make room")

    async with open_picker(fail) as (pilot, app):
        assert "chats.db: the disk is full: make room" in screen_text(app)
        await pilot.press("enter", "escape")
        await pilot.pause()
    assert app.results == [None]


async def test_titles_are_sanitised_and_cut() -> None:
    async def hostile(_: str) -> Sequence[SessionInfo]:
        return [
            replace(CHATS[0], title="[red]\x1b]0;x\x07\n" + "ab" * 90, excerpt="[/]\x9b\u202e", model="[@click=quit]")
        ]

    async with open_picker(hostile) as (_pilot, app):
        text = screen_text(app)
        assert "[red]" in text
        assert "[@click=quit]" in text
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*text}
        assert sum("ababab" in row for row in text.split("\n")) == 1
