"""Edits at positions of every kind in texts of every kind. The oracle never looks at characters: it encodes the whole
text, finds lines and columns by counting code units, splices there, and decodes."""

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.lsp.document import Document, Encoding, LineColumn
from tests.lsp.wire import Local, change

URI = "file:///project/a.py"
CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
TEXTS = {
    "ASCII": "one = 1\ntwo = 2\nthree = 3\n",
    "é NFD": "cafe\u0301 = 1\ne\u0301e\u0301\nxe\u0301\n",
    "astral": "😋 = 1\n😋😋\nx😋\n",
    "ZWJ family": "👩\u200d👩\u200d👧\u200d👦 = 1\n👩\u200d👧\nx\n",
    "combining marks": "a\u0300\u0316\u0334b = 1\n\u0301x\n\u20dd\n",
    "CRLF": "one = 1\r\ntwo é😋\r\nthree\r\n",
    "lone CR": "one = 1\rtwo é😋\rthree\r",
    "mixed line ends": "one\r\n\rtwo\n\r\nthree\n\nfour\r",
    "BOM": "\ufeffone = 1\n\ufefftwo\n\ufeff\n",
    "form feed": "one\x0cx = 1\n\x0c\nthree\x0b\x1c\n",
    "U+2028": "one\u2028x = 1\n\u2029\u2028\nthree\u2028\n",
    "NUL": "one\0x = 1\n\0\nthree\0\n",
    "empty": "",
    "no last line end": "one = 1\ntwo 😋\nthree é",
    "one line": "😋é錯x",
    "a private and a last code point": "\ue000\uffff = 1\n\U0010ffff\nx\n",
}
EDITS = [
    ((0, 0), (0, 0), "#é😋 "),
    ((1, 1), (1, 1), "|"),  # where a character may be cut
    ((1, 0), (1, 0), "new\nlines\r\nhere\r"),
    ((1, 0), (1, 0), "\r"),
    ((1, 0), (1, 0), "\n"),
    ((0, 1), (0, 4), ""),
    ((1, 0), (2, 0), ""),
    ((0, 1000), (1, 0), ""),  # a line end
    ((0, 2), (2, 1), "é\n😋"),
    ((2, 0), (2**31 - 1, 2**31 - 1), "end"),
    ((1, 500), (1, 500), "!"),  # beyond the line
    ((99, 7), (99, 7), "!"),  # beyond the document
    ((2, 1), (0, 1), "?"),  # from the end to the start
]


class Oracle:
    """A text as its code units."""

    def __init__(self, text: str, encoding: str) -> None:
        self._codec, self._size = CODECS[encoding]
        data = text.encode(self._codec)
        self.units = [data[i : i + self._size] for i in range(0, len(data), self._size)]

    @property
    def text(self) -> str:
        return b"".join(self.units).decode(self._codec)

    def offset(self, line: int, column: int) -> int:
        cr, lf = (end.encode(self._codec) for end in "\r\n")
        starts = [0]
        for i, unit in enumerate(self.units):
            if unit == lf or (unit == cr and self.units[i + 1 : i + 2] != [lf]):
                starts.append(i + 1)
        if line >= len(starts):
            return len(self.units)
        end = starts[line]
        while end < len(self.units) and self.units[end] not in (cr, lf):
            end += 1
        at = min(starts[line] + column, end)
        while at > starts[line] and at < end and self._continues(self.units[at]):
            at -= 1
        return at

    def _continues(self, unit: bytes) -> bool:
        """Whether a character does not begin with this unit."""
        number = int.from_bytes(unit, "little")
        return {1: 0x80 <= number < 0xC0, 2: 0xDC00 <= number < 0xE000, 4: False}[self._size]

    def replace(self, start: tuple[int, int], end: tuple[int, int], text: str) -> None:
        first, last = sorted((self.offset(*start), self.offset(*end)))
        self.units[first:last] = Oracle(text, {1: "utf-8", 2: "utf-16", 4: "utf-32"}[self._size]).units


@pytest.fixture(scope="module")
def clients() -> dict[str, Local]:
    return {encoding: Local(encoding) for encoding in CODECS}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_edits_over_the_wire(clients: dict[str, Local], text: str) -> None:
    for encoding, edit in product(CODECS, EDITS):
        client, oracle = clients[encoding], Oracle(text, encoding)
        client.open(URI, text)
        client.change(URI, 2, change(*edit))
        oracle.replace(*edit)
        assert client.text(URI) == oracle.text, (encoding, edit)
        document = client.protocol.documents[URI]
        assert (document.version, document.size, document.encoding) == (2, len(oracle.text), encoding)


@settings(max_examples=100, deadline=None)
@given(
    encoding=st.sampled_from(sorted(CODECS)),
    text=st.sampled_from(sorted(TEXTS.values())),
    edits=st.lists(
        st.tuples(
            *[st.tuples(st.integers(0, 6), st.integers(0, 12))] * 2,
            st.lists(st.sampled_from(["x", "\n", "\r", "é", "😋", "\u2028", "e\u0301"]), max_size=4).map("".join),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_several_edits_in_one_notification(
    clients: dict[str, Local], encoding: str, text: str, edits: list[Any]
) -> None:
    client, oracle = clients[encoding], Oracle(text, encoding)
    mirror = re.split("\r\n|\r|\n", text)

    def follow(_: Document, first: int, old: Any, new: Any) -> None:
        assert mirror[first : first + len(old)] == list(old)
        mirror[first : first + len(old)] = new

    client.protocol.on_change = follow
    client.open(URI, text)
    client.change(URI, 7, *(change(*edit) for edit in edits))
    for edit in edits:
        oracle.replace(*edit)
    assert client.text(URI) == oracle.text
    assert mirror == re.split("\r\n|\r|\n", oracle.text)  # whoever follows the changes has the same lines


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(st.sampled_from("ab\n\ré😋"), max_size=40),
    at=st.tuples(st.integers(0, 8), st.integers(0, 8)),
    before=st.integers(0, 50),
    after=st.integers(0, 50),
)
def test_a_window_is_a_part_of_the_text(text: str, at: tuple[int, int], before: int, after: int) -> None:
    document = Document(URI, text, 1)
    place = document.place(*at)
    whole_before, whole_after = document.around(place)
    window = document.window(place, before, after)
    assert window.before == whole_before[max(len(whole_before) - before, 0) :]
    assert window.after == whole_after[:after]
    # The first line is the one in which the text before begins: counted from the place, in the whole text.
    skipped = document.text[: len(whole_before) - len(window.before)]
    first = len(re.findall("\r\n|\r(?!\n)|(?<!\r)\n", skipped))
    cut_in_two = skipped.endswith("\r") and document.text[len(skipped) : len(skipped) + 1] == "\n"
    assert window.first_line == first or (not window.before and window.first_line == place.line) or cut_in_two


@pytest.mark.parametrize("encoding", CODECS)
def test_a_long_line(encoding: Encoding) -> None:
    line = "a😋é" * 3000
    document = Document(URI, line, 1, encoding)
    for column in (0, 1, 2, 1023, 1024, 1025, 2048, 5000, 9000):
        units = Oracle(line[:column], encoding).units
        assert document.place(0, len(units)) == LineColumn(0, column)
        assert document.units(LineColumn(0, column)) == len(units)
    assert document.place(0, 10**9) == LineColumn(0, 9000)


@pytest.mark.parametrize("encoding", CODECS)
def test_a_byte_that_is_no_utf_8_is_one_unit(clients: dict[str, Local], encoding: str) -> None:
    client = clients[encoding]
    opening = b'{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":"u","languageId":"",'
    opening += b'"version":1,"text":"caf\xe9 x"}}}'
    client.feed(b"Content-Length: %d\r\n\r\n%s" % (len(opening), opening))
    client.change("u", 2, change((0, 5), (0, 6), "y"))
    assert client.text("u") == "caf\udce9 y"


def test_what_is_no_text_to_complete_in() -> None:
    document = Document(URI, "one\ntwo\n", 1)
    assert document.is_text(8, 4)
    assert not document.is_text(7, 4)
    assert not document.is_text(8, 3)
    document.replace(LineColumn(0, 1), LineColumn(0, 1), "\0" + "x" * 100)
    assert not document.is_text(1000, 1000)
    document.replace(LineColumn(0, 1), LineColumn(0, 2), "")
    assert document.is_text(1000, 1000)
    assert not document.is_text(1000, 50)
    document.replace(LineColumn(0, 1), LineColumn(0, 101), "")
    assert document.is_text(1000, 50)
    document.replace_all("\0")
    assert not document.is_text(1000, 1000)
    document.replace_all("é" * 60)
    assert (document.is_text(60, 60), document.is_text(60, 59)) == (True, False)


def test_a_range_is_in_the_units_of_the_client() -> None:
    document = Document(URI, "a😋b\n😋😋", 1, "utf-16")
    found = document.range(LineColumn(0, 2), LineColumn(1, 1))
    assert (found.start.line, found.start.character, found.end.line, found.end.character) == (0, 3, 1, 2)
