import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.base.errors import StoreFailed
from localdflash.chat.chat_listing import SessionInfo
from localdflash.tui.screens.chats_screen import MOST, ChatChoice, ChatPicker, Search, age
from localdflash.tui.screens.dialog import Choices
from tests.tui.stage import Script, Stage, play, shown, wait_until

NOW = 1_700_000_000.0
CHATS = [
    SessionInfo(7, "A parser for dates", "/code", "embedded", "", NOW - 999, NOW - 120, 4, "def parse(text): …"),
    SessionInfo(5, "Sorting", "/code", "qwen3-4b", "", NOW, NOW - 90_000, 1, "sorted(rows)"),
    SessionInfo(3, "", "/code", "", "", NOW, NOW - 40 * 86_400, 2, ""),
]


async def finding(words: str) -> Sequence[SessionInfo]:
    return [chat for chat in CHATS if words.lower() in f"{chat.title} {chat.excerpt}".lower()]


def picking(script: Script, search: Search = finding, words: str = "", size: tuple[int, int] = (100, 30)) -> list[Any]:
    app = Stage(screen=lambda: ChatPicker(search, words, now=lambda: NOW))
    asyncio.run(play(app, script, size))
    return app.results


def pressing(*keys: str) -> Script:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press(*keys)
        await pilot.pause()

    return script


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (-5, "just now"),
        (59, "just now"),
        (60, "1 minute ago"),
        (3599, "59 minutes ago"),
        (3600, "1 hour ago"),
        (86_399, "23 hours ago"),
        (86_400, "1 day ago"),
        (14 * 86_400, "14 days ago"),
    ],
)
def test_age_in_words(ago: float, words: str) -> None:
    assert age(NOW - ago, NOW) == words


def test_what_is_old_has_a_date() -> None:
    assert age(NOW - 40 * 86_400, NOW) == time.strftime("on %Y-%m-%d", time.localtime(NOW - 40 * 86_400))


def test_what_is_known_of_each_chat_stands_there() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        text = shown(pilot.app)
        for said in (
            "A parser for dates",
            "2 minutes ago · 4 messages · embedded",
            "def parse(text): …",
            "1 day ago · 1 message · qwen3-4b",
            "Untitled",
            "3 chats",
        ):
            assert said in text

    picking(script)


@pytest.mark.parametrize(
    ("keys", "choice"),
    [
        (["enter"], ChatChoice("open", 7)),
        (["down", "enter"], ChatChoice("open", 5)),
        (["down", "down", "down", "up", "enter"], ChatChoice("open", 5)),
        (["pagedown", "enter"], ChatChoice("open", 3)),
        ([*"sort", "enter"], ChatChoice("open", 5)),
        (["ctrl+d"], ChatChoice("delete", 7)),
        (["down", "ctrl+e"], ChatChoice("export", 5)),
        (["ctrl+r", *" 2", "enter"], ChatChoice("rename", 7, "A parser for dates 2")),
        (["ctrl+r", "x", "escape", "down", "enter"], ChatChoice("open", 5)),
        (["escape"], None),
    ],
)
def test_keys(keys: list[str], choice: ChatChoice | None) -> None:
    assert picking(pressing(*keys)) == [choice]


def test_a_name_of_nothing_is_not_given() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("down", "down", "ctrl+r", " ", "enter")
        await pilot.pause()
        assert not pilot.app.results  # type: ignore[attr-defined]
        await pilot.press("enter")
        await pilot.pause()

    assert picking(script) == [ChatChoice("open", 3)]


def test_while_a_name_is_given_nothing_else_is_done_with_the_chat() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("ctrl+r", "ctrl+d", "ctrl+e")
        await pilot.pause()

    assert picking(script) == []


def test_a_click_opens() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.click(Choices, offset=(4, 4))
        await pilot.pause()

    assert picking(script) == [ChatChoice("open", 5)]


def test_words_given_are_looked_for_at_once() -> None:
    assert picking(pressing("enter"), words="sort") == [ChatChoice("open", 5)]


def test_nothing_found_and_nothing_there_are_told_apart() -> None:
    async def nowhere(_: str) -> Sequence[SessionInfo]:
        return []

    async def script(pilot: Pilot[Any]) -> None:
        assert "No chats yet" in shown(pilot.app)
        await pilot.press(*"zzz", "enter", "ctrl+d", "ctrl+e", "ctrl+r", "down")
        await pilot.pause()
        assert "No chat has these words: zzz" in shown(pilot.app)

    assert picking(script, nowhere) == []


def test_an_answer_that_comes_late_is_not_shown_and_enter_waits_for_the_right_one() -> None:
    right = asyncio.Event()
    asked: list[str] = []

    async def slow(words: str) -> Sequence[SessionInfo]:
        asked.append(words)
        try:
            await right.wait()
        except asyncio.CancelledError:  # answers all the same, with what is not wanted any more
            return CHATS[:1]
        return await finding(words)

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press(*"sort", "enter")
        await wait_until(pilot, lambda: asked[-1:] == ["sort"])
        assert "A parser" not in shown(pilot.app)
        right.set()
        await wait_until(pilot, lambda: bool(pilot.app.results))  # type: ignore[attr-defined]

    assert picking(script, slow) == [ChatChoice("open", 5)]
    assert len(asked) > 2


def test_a_search_that_fails_is_one_line() -> None:
    async def broken(_: str) -> Sequence[SessionInfo]:
        raise StoreFailed("chats.db: the disk is full: make room")

    async def script(pilot: Pilot[Any]) -> None:
        assert "chats.db: the disk is full: make room" in shown(pilot.app)
        await pilot.press("enter", "escape")
        await pilot.pause()

    assert picking(script, broken) == [None]


def test_ten_thousand_chats_are_limited_and_quick() -> None:
    many = [replace(CHATS[0], id=number, title=f"Chat {number}") for number in range(10_000)]

    async def all_of_them(words: str) -> Sequence[SessionInfo]:
        return [chat for chat in many if words in chat.title]

    async def script(pilot: Pilot[Any]) -> None:
        began = time.perf_counter()
        await pilot.press(*"Chat 99")
        await pilot.pause()
        assert time.perf_counter() - began < 3
        assert pilot.app.screen.query_one(Choices).option_count <= MOST
        assert "type words to find others" in shown(pilot.app) or "chats" in shown(pilot.app)

    picking(script, all_of_them)


def test_titles_are_harmless_and_cut_at_the_edge() -> None:
    async def hostile(_: str) -> Sequence[SessionInfo]:
        return [
            replace(CHATS[0], title="[red]\x1b]0;x\x07\n" + "ab" * 90, excerpt="[/]\x9b\u202e", model="[@click=quit]")
        ]

    async def script(pilot: Pilot[Any]) -> None:
        text = shown(pilot.app)
        assert "[red]" in text
        assert "[@click=quit]" in text
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*text}
        assert sum("ababab" in row for row in text.split("\n")) == 1
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert "\x1b" not in shown(pilot.app)

    picking(script, hostile)


@pytest.mark.parametrize("size", [(20, 5), (40, 12)])
def test_a_tiny_terminal(size: tuple[int, int]) -> None:
    async def script(pilot: Pilot[Any]) -> None:
        assert "A parser" in shown(pilot.app)
        await pilot.press("ctrl+r", "escape", "enter")
        await pilot.pause()

    assert picking(script, size=size) == [ChatChoice("open", 7)]
