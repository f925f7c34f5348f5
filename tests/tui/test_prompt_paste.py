"""Pastes: inserted, attached or refused; always one event, and never keys."""

import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message

from localdflash.tui.pastes import MAX_PASTE_CHARS, Paste, PasteParser, clean_paste
from tests.tui.desk import Desk, type_in
from tests.tui.stage import run_app


async def prompt_after_paste(folder: Path, text: str) -> Desk:
    """Type a word into a prompt, then paste a text."""
    desk = Desk(folder)
    async with run_app(desk, (80, 30)) as pilot:
        await type_in(pilot, "typed ")
        desk.paste(text)
        await pilot.pause()
    return desk


async def test_short_paste_is_inserted(tmp_path: Path) -> None:
    text = "x\r" * 30
    desk = await prompt_after_paste(tmp_path, text)
    assert desk.prompt.text == f"typed {text}".replace("\r", "\n")
    assert desk.chips == []


@pytest.mark.parametrize(
    ("text", "attached"),
    [
        ("x\r\n" * 31, "x\r\n" * 31),
        ("\x1b\u202e" * 1_001, "\x1b\u202e" * 1_001),
    ],
)
async def test_long_paste_is_attached_exactly(tmp_path: Path, text: str, attached: str) -> None:
    desk = await prompt_after_paste(tmp_path, text)
    assert desk.prompt.text == "typed "
    assert [(one.kind, one.name, one.text) for one in desk.prompt.attachments] == [("paste", "pasted 1", attached)]
    assert desk.notices == []


async def test_huge_paste_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with run_app(desk) as pilot:
        await type_in(pilot, "typed ")
        began = time.perf_counter()
        desk.paste("0123456789\n" * 900_000)
        await pilot.pause()
        assert time.perf_counter() - began < 2
        assert desk.refused == ["paste too large (9.4 MB, at most 977 KB); save it to a file and mention parts of it"]
        assert (desk.prompt.text, desk.chips) == ("typed ", [])


async def test_invisible_characters_are_spelled_out_and_reported(tmp_path: Path) -> None:
    desk = await prompt_after_paste(tmp_path, "a\x1b]0;x\x07b\x9b\u202ec\x00\u200d")
    assert desk.prompt.text == "typed a␛]0;x␇b⟦U+009B⟧⟦U+202E⟧c␀⟦U+200D⟧"
    assert desk.notices == ["6 invisible characters spelled out in the pasted text"]


@given(st.text(max_size=60))
def test_cleaned_paste_is_safe_and_complete(text: str) -> None:
    safe, hidden = clean_paste(text)
    assert not any((ord(one) < 0x20 and one not in "\n\t") or 0x7F <= ord(one) < 0xA0 for one in safe)
    assert safe.splitlines() == safe.split("\n")[: len(safe.splitlines())]
    visible = [one for one in text if one.isalnum()]
    assert [one for one in safe if one.isalnum()][: len(visible)] == visible or hidden


async def test_ctrl_v_pastes_the_app_clipboard(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with run_app(desk) as pilot:
        desk.copy_to_clipboard("a\x1bb")
        await pilot.press("ctrl+v")
        desk.copy_to_clipboard("x\n" * 40)
        await pilot.press("ctrl+v")
        assert (desk.prompt.text, desk.chips) == ("a␛b", ["pasted 1"])


START, END = "\x1b[200~", "\x1b[201~"


def feed_all(*pieces: str) -> list[Message]:
    parser = PasteParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def describe(found: Iterable[Message]) -> list[str]:
    """Return keys by name and pastes by their raw text."""
    return [
        event.raw if isinstance(event, Paste) else event.key if isinstance(event, events.Key) else repr(event)
        for event in found
    ]


@given(
    st.lists(
        st.text(alphabet="ab\x1b[20~1\x11\r\x9b", max_size=12).filter(lambda one: END not in one + END[:-1]), max_size=3
    ),
    st.data(),
)
def test_paste_parser_ignores_chunk_boundaries(texts: list[str], data: st.DataObject) -> None:
    stream = "k".join(f"{START}{text}{END}" for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [part for text in texts for part in (text, "k")][:-1]
    assert describe(feed_all(*(piece for piece in pieces if piece))) == expected


@pytest.mark.parametrize("keys", ["\x1b[A", "\x1b[13;2u", "\x1b[<0;3;4M", "\x1b[I\x1b[O"])
def test_other_input_goes_to_textual(keys: str) -> None:
    theirs, ours = XTermParser(), PasteParser()
    expected = [repr(event) for character in keys for event in theirs.feed(character)]
    assert [repr(event) for character in keys for event in ours.feed(character)] == expected
    assert [repr(event) for event in feed_all(keys)] == [repr(event) for event in XTermParser().feed(keys)]


def test_ten_megabyte_paste_is_cut() -> None:
    text = "0123456789abcde\n" * 655_360
    stream = f"{START}{text}{END}x"
    parser = PasteParser()
    began = time.perf_counter()
    found = [event for at in range(0, len(stream), 4096) for event in parser.feed(stream[at : at + 4096])]
    assert time.perf_counter() - began < 2
    paste, key = found
    assert isinstance(paste, Paste)
    assert (paste.length, len(paste.raw)) == (len(text), MAX_PASTE_CHARS + 1)
    assert describe([key]) == ["x"]
