"""The reader of LSP's base protocol: valid messages in any pieces, and an error for what is not LSP."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.lsp import framing
from localdflash.lsp.framing import MAX_HEADER_BYTES, FramingError, MessageReader
from tests.lsp.wire import framed, framed_text

A = {"jsonrpc": "2.0", "method": "a", "params": {"text": "é 😋 \r\n"}}
BODY = json.dumps(A).encode()


def read(*chunks: bytes) -> list[object]:
    reader = MessageReader()
    return [value for chunk in chunks for value in reader.feed(chunk)]


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.text(), st.none() | st.integers() | st.text()), max_size=4), st.data())
def test_messages_survive_any_split(values: list[object], data: st.DataObject) -> None:
    stream = b"".join(map(framed, values))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    assert read(*(stream[i:j] for i, j in zip([0, *cuts], [*cuts, len(stream)], strict=True))) == values


INVALID = {
    "a negative length": b"Content-Length: -5\r\n\r\n",
    "a length of more digits than numbers have": b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a length too short": framed(A).replace(b"%d" % len(BODY), b"%d" % (len(BODY) - 20), 1) + framed(A),
    "no line end": b"x" * MAX_HEADER_BYTES,
    "HTTP": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
}


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
def test_an_invalid_header_is_an_error(data: bytes) -> None:
    with pytest.raises(FramingError, match="Content-Length"):
        read(data)


def test_the_largest_body_is_read_and_one_byte_more_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_BODY_BYTES", 1_000)
    text = b'"%s"' % (b"x" * 998)
    assert read(framed_text(text)) == [text[1:-1].decode()]
    with pytest.raises(FramingError, match="too large"):
        read(framed_text(text + b" "))
