"""Pastes as terminals send them: whole whatever pieces they come in, quick, and never taken for keys."""

import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message

from localdflash.tui.pastes import MAX_PASTE_CHARS, Paste, PasteParser

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


@pytest.mark.parametrize("text", ["", "a\x1b]52;c;x\x07b", START, "\x1b[201"])
def test_a_paste_is_one_event(text: str) -> None:
    assert told(fed(f"a{START}{text}{END}b\r")) == ["a", text, "b", "enter"]


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
