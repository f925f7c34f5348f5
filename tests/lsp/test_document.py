"""Edits and positions of documents against a model that works on the whole text, character by character."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.lsp.document import Document, Encoding, LineColumn

ENCODINGS: tuple[Encoding, ...] = ("utf-8", "utf-16", "utf-32")
# Line ends, what Python takes for line ends and LSP does not, wide, astral and combining characters, half a pair.
PIECES = ["a", "x = 1", "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "é", "e\u0301", "錯", "😋"]
PIECES += ["\U0001f469\u200d\U0001f467", "\t", "\ud800"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
NUMBERS = st.integers(-1, 12) | st.just(2**31)


def size(character: str, encoding: Encoding) -> int:
    if encoding == "utf-32":
        return 1
    if encoding == "utf-16":
        return 2 if ord(character) > 0xFFFF else 1
    return 1 if ord(character) < 0x80 else 2 if ord(character) < 0x800 else 3 if ord(character) < 0x10000 else 4


def lines_of(text: str) -> list[str]:
    """Every line with its end, by looking at one character after the other."""
    lines, current, i = [], "", 0
    while i < len(text):
        current += text[i]
        if text[i] == "\r" and text[i + 1 : i + 2] == "\n":
            current += "\n"
            i += 1
        if current[-1] in "\r\n":
            lines.append(current)
            current = ""
        i += 1
    return [*lines, current]


def offset_of(text: str, line: int, units: int, encoding: Encoding) -> int:
    """Where a client's position lies in the text."""
    lines = lines_of(text)
    if line < 0:
        return 0
    if line >= len(lines):
        return len(text)
    offset, left = sum(map(len, lines[:line])), units
    for character in lines[line].rstrip("\r\n"):
        left -= size(character, encoding)
        if left < 0:
            break
        offset += 1
    return offset


@settings(max_examples=100, deadline=None)
@given(
    text=TEXTS,
    encoding=st.sampled_from(ENCODINGS),
    edits=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, TEXTS), min_size=1, max_size=5),
)
def test_edits_do_what_they_do_to_the_whole_text(
    text: str, encoding: Encoding, edits: list[tuple[int, int, int, int, str]]
) -> None:
    document = Document("file:///a.py", text, 1, encoding)
    for line, units, end_line, end_units, new in edits:
        start, end = (offset_of(text, *at, encoding) for at in ((line, units), (end_line, end_units)))
        start, end = min(start, end), max(start, end)
        text = text[:start] + new + text[end:]
        document.replace(document.place(line, units), document.place(end_line, end_units), new)
        assert document.text == text
        assert document._lines == lines_of(text)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, encoding=st.sampled_from(ENCODINGS), line=NUMBERS, units=NUMBERS)
def test_positions(text: str, encoding: Encoding, line: int, units: int) -> None:
    document = Document("file:///a.py", text, 1, encoding)
    place, offset = document.place(line, units), offset_of(text, line, units, encoding)
    assert document.around(place) == (text[:offset], text[offset:])
    assert document.place(place.line, document.units(place)) == place
    assert document.units(place) == sum(size(c, encoding) for c in lines_of(text)[place.line][: place.column])


@pytest.mark.parametrize(("encoding", "units"), [("utf-8", 4), ("utf-16", 2), ("utf-32", 1)])
def test_the_middle_of_a_character_is_before_it(encoding: Encoding, units: int) -> None:
    document = Document("file:///a.py", "😋x", 1, encoding)
    for inside in range(units):
        assert document.place(0, inside) == LineColumn(0, 0)
    assert document.place(0, units) == LineColumn(0, 1)


def test_a_form_feed_ends_no_line() -> None:
    document = Document("file:///a.py", "x = 1\ny = 2\x0c3\nz = 3\n", 1)
    document.replace(document.place(2, 0), document.place(2, 1), "QQ")
    assert document.text == "x = 1\ny = 2\x0c3\nQQ = 3\n"
    assert (document.line(1), document.line_count) == ("y = 2\x0c3", 4)


def test_an_edit_of_a_large_file_touches_little() -> None:
    document = Document("file:///a.py", "value = 1\n" * 100_000, 1)
    before: Any = document._lines[50]
    document.replace(LineColumn(50_000, 3), LineColumn(50_001, 2), "new\nline")
    assert document._lines[50] is before
    assert document.line(50_000) == "valnew"
    assert document.line(50_001) == "linelue = 1"
    document.replace_all("y")
    assert document.text == "y"
