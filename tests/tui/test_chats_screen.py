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
from tests.tui.stage import Stage, dialog, result_of, shown, wait_until

NOW = 1_700_000_000.0
CHATS = [
    SessionInfo(7, "A parser for dates", "/code", "embedded", "", NOW - 999, NOW - 120, 4, "def parse(text): …"),
    SessionInfo(5, "Sorting", "/code", "qwen3-4b", "", NOW, NOW - 90_000, 1, "sorted(rows)"),
    SessionInfo(3, "", "/code", "", "", NOW, NOW - 40 * 86_400, 2, ""),
]


async def finding(words: str) -> Sequence[SessionInfo]:
    return [chat for chat in CHATS if words.lower() in f"{chat.title} {chat.excerpt}".lower()]


def picking(search: Search = finding) -> AbstractAsyncContextManager[tuple[Pilot[Any], Stage]]:
    return dialog(lambda: ChatPicker(search, now=lambda: NOW))


@pytest.mark.parametrize(
    ("keys", "choice"),
    [
        (["pagedown", "enter"], ChatChoice("open", 3)),
        (["ctrl+d"], ChatChoice("delete", 7)),
        (["down", "ctrl+e"], ChatChoice("export", 5)),
        (["down", "ctrl+r"], ChatChoice("rename", 5)),
    ],
)
async def test_keys(keys: list[str], choice: ChatChoice | None) -> None:
    assert await result_of(lambda: ChatPicker(finding, now=lambda: NOW), *keys) == [choice]


async def test_an_answer_that_comes_late_is_not_shown_and_enter_waits_for_the_right_one() -> None:
    right = asyncio.Event()
    asked: list[str] = []

    async def slow(words: str) -> Sequence[SessionInfo]:
        asked.append(words)
        try:
            await right.wait()
        except asyncio.CancelledError:  # answers all the same, with what is not wanted any more
            return CHATS[:1]
        return await finding(words)

    async with picking(slow) as (pilot, app):
        await pilot.press(*"sort", "enter")
        await wait_until(pilot, lambda: asked[-1:] == ["sort"])
        assert "A parser" not in shown(app)
        right.set()
        await wait_until(pilot, lambda: bool(app.results))
        await pilot.pause()
    assert app.results == [ChatChoice("open", 5)]
    assert len(asked) > 2


async def test_a_search_that_fails_is_one_line() -> None:
    async def broken(_: str) -> Sequence[SessionInfo]:
        raise StoreError("chats.db: the disk is full: make room")

    async with picking(broken) as (pilot, app):
        assert "chats.db: the disk is full: make room" in shown(app)
        await pilot.press("enter", "escape")
        await pilot.pause()
    assert app.results == [None]


async def test_titles_are_harmless_and_cut_at_the_edge() -> None:
    async def hostile(_: str) -> Sequence[SessionInfo]:
        return [
            replace(CHATS[0], title="[red]\x1b]0;x\x07\n" + "ab" * 90, excerpt="[/]\x9b\u202e", model="[@click=quit]")
        ]

    async with picking(hostile) as (_pilot, app):
        text = shown(app)
        assert "[red]" in text
        assert "[@click=quit]" in text
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*text}
        assert sum("ababab" in row for row in text.split("\n")) == 1
