"""Pastes: into the text, attached, or refused; one event whatever pieces they come in, and never keys."""

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
from tests.tui.stage import playing


async def pasted(folder: Path, text: str) -> Desk:
    """A prompt into which a word was typed and this text was pasted."""
    desk = Desk(folder)
    async with playing(desk, (80, 30)) as pilot:
        await type_in(pilot, "typed ")
        desk.paste(text)
        await pilot.pause()
    return desk


async def test_short_pastes_are_text(tmp_path: Path) -> None:
    text = "x\r" * 30
    desk = await pasted(tmp_path, text)
    assert desk.prompt.text == f"typed {text}".replace("\r", "\n")
    assert desk.chips == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x\r\n" * 31, "x\r\n" * 31),
        ("\x1b\u202e" * 1_001, "\x1b\u202e" * 1_001),
    ],
)
async def test_long_pastes_are_attached_to_the_byte(tmp_path: Path, text: str, kept: str) -> None:
    desk = await pasted(tmp_path, text)
    assert desk.prompt.text == "typed "
    assert [(one.kind, one.name, one.text) for one in desk.prompt.attachments] == [("paste", "pasted 1", kept)]
    assert desk.told == []


async def test_a_huge_paste_is_refused_at_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with playing(desk) as pilot:
        await type_in(pilot, "typed ")
        begun = time.perf_counter()
        desk.paste("0123456789\n" * 900_000)
        await pilot.pause()
        assert time.perf_counter() - begun < 2
        assert desk.refused == ["paste too large (9.4 MB, at most 977 KB); save it to a file and mention parts of it"]
        assert (desk.prompt.text, desk.chips) == ("typed ", [])


async def test_characters_that_nobody_sees_are_spelled_out_and_told(tmp_path: Path) -> None:
    desk = await pasted(tmp_path, "a\x1b]0;x\x07b\x9b\u202ec\x00\u200d")
    assert desk.prompt.text == "typed a␛]0;x␇b⟦U+009B⟧⟦U+202E⟧c␀⟦U+200D⟧"
    assert desk.told == ["6 invisible characters spelled out in the pasted text"]


@given(st.text(max_size=60))
def test_pasted_text_is_safe_and_nothing_of_it_is_gone(text: str) -> None:
    safe, hidden = clean_paste(text)
    assert not any((ord(one) < 0x20 and one not in "\n\t") or 0x7F <= ord(one) < 0xA0 for one in safe)
    assert safe.splitlines() == safe.split("\n")[: len(safe.splitlines())]
    visible = [one for one in text if one.isalnum()]
    assert [one for one in safe if one.isalnum()][: len(visible)] == visible or hidden


async def test_pasting_what_was_copied_here(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with playing(desk) as pilot:
        desk.copy_to_clipboard("a\x1bb")
        await pilot.press("ctrl+v")
        desk.copy_to_clipboard("x\n" * 40)
        await pilot.press("ctrl+v")
        assert (desk.prompt.text, desk.chips) == ("a␛b", ["pasted 1"])


START, END = "\x1b[200~", "\x1b[201~"


def fed(*pieces: str) -> list[Message]:
    parser = PasteParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def told(found: Iterable[Message]) -> list[str]:
    """Keys by name, pastes by their raw text."""
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
def test_any_pieces_make_the_same(texts: list[str], data: st.DataObject) -> None:
    stream = "k".join(f"{START}{text}{END}" for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [part for text in texts for part in (text, "k")][:-1]
    assert told(fed(*(piece for piece in pieces if piece))) == expected


@pytest.mark.parametrize("keys", ["\x1b[A", "\x1b[13;2u", "\x1b[<0;3;4M", "\x1b[I\x1b[O"])
def test_other_input_is_textuals(keys: str) -> None:
    theirs, ours = XTermParser(), PasteParser()
    expected = [repr(event) for character in keys for event in theirs.feed(character)]
    assert [repr(event) for character in keys for event in ours.feed(character)] == expected
    assert [repr(event) for event in fed(keys)] == [repr(event) for event in XTermParser().feed(keys)]


def test_ten_megabytes_take_no_time_and_little_memory() -> None:
    text = "0123456789abcde\n" * 655_360
    stream = f"{START}{text}{END}x"
    parser = PasteParser()
    begun = time.perf_counter()
    found = [event for at in range(0, len(stream), 4096) for event in parser.feed(stream[at : at + 4096])]
    assert time.perf_counter() - begun < 2
    paste, key = found
    assert isinstance(paste, Paste)
    assert (paste.length, len(paste.raw)) == (len(text), MAX_PASTE_CHARS + 1)
    assert told([key]) == ["x"]
