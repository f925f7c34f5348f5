"""Edits and positions against an oracle that never looks at characters: it encodes the whole text, finds lines and
columns by counting code units, splices there, and decodes.
"""

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localdflash.lsp.document import Document, Encoding
from tests.lsp.wire import Local, change

URI = "file:///project/a.py"
CODECS: dict[Encoding, tuple[str, int]] = {
    "utf-8": ("utf-8", 1),
    "utf-16": ("utf-16-le", 2),
    "utf-32": ("utf-32-le", 4),
}
# Line ends, what Python takes for line ends and LSP does not, wide, astral and combining characters.
PIECES = [
    "a",
    "x = 1",
    "\n",
    "\r",
    "\r\n",
    "\0",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\u2028",
    "\ufeff",
    "é",
    "e\u0301",
    "錯",
]
PIECES += ["a", "😋", "\U0001f469\u200d\U0001f467", "\t", "\uffff", "\U0010ffff"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
POSITIONS = st.tuples(st.integers(0, 7) | st.just(2**31 - 1), st.integers(0, 12) | st.just(2**31 - 1))
ENCODINGS = st.sampled_from(sorted(CODECS))


class Oracle:
    """A text as its code units."""

    def __init__(self, text: str, encoding: Encoding) -> None:
        self._encoding, (self._codec, self._size) = encoding, CODECS[encoding]
        data = text.encode(self._codec)
        self.units = [data[i : i + self._size] for i in range(0, len(data), self._size)]

    def text(self, start: int = 0, end: int | None = None) -> str:
        return b"".join(self.units[start:end]).decode(self._codec)

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
        """Return whether the unit is inside a character."""
        number = int.from_bytes(unit, "little")
        return {1: 0x80 <= number < 0xC0, 2: 0xDC00 <= number < 0xE000, 4: False}[self._size]

    def replace(self, start: tuple[int, int], end: tuple[int, int], text: str) -> None:
        first, last = sorted((self.offset(*start), self.offset(*end)))
        self.units[first:last] = Oracle(text, self._encoding).units


@pytest.fixture(scope="module")
def clients() -> dict[Encoding, Local]:
    return {encoding: Local(encoding) for encoding in CODECS}


@settings(max_examples=80)
@given(ENCODINGS, TEXTS, st.lists(st.tuples(POSITIONS, POSITIONS, TEXTS), min_size=1, max_size=6))
@example("utf-16", "one\r\ntwo", [((0, 1000), (1, 0), "")])  # a line end
@example("utf-8", "one\n😋two\nthree", [((2, 1), (1, 1), "\r"), ((1, 0), (1, 0), "\n"), ((2, 0), (99, 7), "end")])
def test_edits_over_the_wire(clients: dict[Encoding, Local], encoding: Encoding, text: str, edits: list[Any]) -> None:
    client, oracle = clients[encoding], Oracle(text, encoding)
    mirror = re.split("\r\n|\r|\n", text)

    def follow(_: Document, changes: Any) -> None:
        for first, old, new in changes:
            assert mirror[first : first + len(old)] == list(old)
            mirror[first : first + len(old)] = new

    client.protocol.on_change = follow
    client.open(URI, text)
    client.change(URI, 7, *(change(*edit) for edit in edits))
    for edit in edits:
        oracle.replace(*edit)
    document, expected = client.protocol.documents[URI], oracle.text()
    assert document.text == expected
    assert mirror == re.split("\r\n|\r|\n", expected)  # a listener has the same lines
    assert (document.version, document.size, document.encoding) == (7, len(expected), encoding)


@settings(max_examples=100)
@given(ENCODINGS, TEXTS, POSITIONS)
def test_positions(encoding: Encoding, text: str, at: tuple[int, int]) -> None:
    document, oracle = Document(URI, text, 1, encoding), Oracle(text, encoding)
    place, offset = document.position(*at), oracle.offset(*at)
    assert document.around(place) == (oracle.text(0, offset), oracle.text(offset))
    assert oracle.offset(place.line, document.client_column(place)) == offset


def test_a_byte_that_is_not_utf_8_is_one_unit(clients: dict[Encoding, Local]) -> None:
    client = clients["utf-16"]
    opening = b'{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":"u","languageId":"",'
    opening += b'"version":1,"text":"caf\xe9 x"}}}'
    client.feed(b"Content-Length: %d\r\n\r\n%s" % (len(opening), opening))
    client.change("u", 2, change((0, 5), (0, 6), "y"))
    assert client.text("u") == "caf\udce9 y"
