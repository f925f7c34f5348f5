"""The reader: whatever comes between two messages, the next one is read. The oracle is what the test wrote."""

import json
import resource
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.lsp.framing import KEPT, LARGEST, HttpRequest, Malformed, Reader
from tests.lsp.wire import framed, framed_text

A, B, C = ({"jsonrpc": "2.0", "method": name, "params": {"text": f"{name} é 😋 \r\n"}} for name in ("a", "b", "c"))
BODY = json.dumps(A).encode()
LONG = len(BODY)


def read(*chunks: bytes) -> list[object]:
    reader = Reader()
    return [value for chunk in chunks for value in reader.feed(chunk)]


def good(values: list[object]) -> list[object]:
    return [value for value in values if not isinstance(value, Malformed)]


HEADERS = {
    "as it should be": b"Content-Length: %d\r\n\r\n",
    "lower case": b"content-length: %d\r\n\r\n",
    "upper case": b"CONTENT-LENGTH: %d\r\n\r\n",
    "no space": b"Content-Length:%d\r\n\r\n",
    "many spaces": b"Content-Length  :    %d   \r\n\r\n",
    "a tab": b"Content-Length:\t%d\r\n\r\n",
    "LF only": b"Content-Length: %d\n\n",
    "LF and CRLF": b"Content-Length: %d\n\r\n",
    "leading zeros": b"Content-Length: 000%d\r\n\r\n",
    "type after": b"Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n",
    "type before": b"Content-Type: application/vscode-jsonrpc; charset=utf8\r\nContent-Length: %d\r\n\r\n",
    "an unknown header": b"X-Client: x\r\nContent-Length: %d\r\n\r\n",
    "twice the same": b"Content-Length: %d\r\nContent-Length: %%d\r\n\r\n" % LONG,
    "another one before": b"Content-Length: 3\r\nContent-Length: %d\r\n\r\n",
    "blank lines before": b"\r\n\r\n\nContent-Length: %d\r\n\r\n",
    "a BOM before": b"\xef\xbb\xbfContent-Length: %d\r\n\r\n",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_header_may_be_written_in_many_ways(header: bytes) -> None:
    data = header.replace(b"%d", b"%d" % LONG).replace(b"%%", b"%") + BODY
    assert read(data + framed(B)) == [A, B]
    assert read(*(bytes([byte]) for byte in data + framed(B))) == [A, B]


# Each of them is lost, as nobody can say what it was; the message after it is not.
LOST = {
    "text": b"Hello, here is some noise",
    "a line": b"warning: something printed to stdout\r\n",
    "an empty header": b"\r\n\r\n",
    "no length": b"Content-Type: application/json\r\n\r\n" + BODY,
    "an empty length": b"Content-Length:\r\n\r\n" + BODY,
    "a negative length": b"Content-Length: -5\r\n\r\n" + BODY,
    "a length that is no number": b"Content-Length: ten\r\n\r\n" + BODY,
    "a hexadecimal length": b"Content-Length: 0x40\r\n\r\n" + BODY,
    "a fraction": b"Content-Length: 1.5\r\n\r\n" + BODY,
    "a length of 0": b"Content-Length: 0\r\n\r\n",
    "a length too short": framed(A).replace(b"%d" % LONG, b"%d" % (LONG - 20)),
    "a length too long by one": framed(A).replace(b"%d" % LONG, b"%d" % (LONG + 1)),
    "a length too long by ten": framed(A).replace(b"%d" % LONG, b"%d" % (LONG + 10)),
    "a length too long by far": framed(A).replace(b"%d" % LONG, b"50000"),
    "a length beyond all": framed(A).replace(b"%d" % LONG, b"9" * 14),
    "a length of more digits than numbers have": framed(A).replace(b"%d" % LONG, b"9" * 5000),
    "another length after": b"Content-Length: %d\r\nContent-Length: 3\r\n\r\n" % LONG + BODY,
    "no body": b"Content-Length: 40\r\n\r\n",
    "a body without a header": BODY,
    "a body without a header, and a line end": BODY + b"\r\n",
    "half a body": framed(A)[:-30],
    "half a header": b"Content-Len",
    "a header that does not end": b"Content-Length: 77\r\n",
    "no JSON": framed_text(b"{'single': 'quotes'}"),
    "half JSON": framed_text(b'{"jsonrpc": "2.0", "method": "a'),
    "two values": framed_text(b"{}{}"),
    "blank": framed_text(b"   "),
    "a line end in a string": framed_text(b'{"a": "b\nc"}'),
    "10 000 brackets": framed_text(b"[" * 10_000 + b"]" * 10_000),
    "10 000 objects": framed_text(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "an endless number": framed_text(b"9" * 10_000),
    "UTF-16": framed_text(json.dumps(A).encode("utf-16")),
    "zeros": bytes(10_000),
    "every byte": bytes(range(256)) * 50,
    "100 kB without a line end": b"x" * 100_000,
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
}


@pytest.mark.parametrize("noise", LOST.values(), ids=LOST)
def test_the_message_after_noise_is_read(noise: bytes) -> None:
    data = framed(C) + noise + framed(A) + framed(B)
    assert good(read(data)) == [C, A, B]
    step = max(len(data) // 500, 1)
    assert good(read(*(data[i : i + step] for i in range(0, len(data), step)))) == [C, A, B]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_messages_survive_any_split_and_any_noise(data: st.DataObject) -> None:
    bodies = st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=6
    )
    values = data.draw(st.lists(st.fixed_dictionaries({"a": bodies}), min_size=1, max_size=4))
    noise = st.binary(max_size=40).filter(lambda b: b"HTTP" not in b)
    stream = b"".join(data.draw(noise) + framed(value) for value in values)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    parts = [stream[i:j] for i, j in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert good(read(*parts)) == values


def test_bytes_that_are_no_utf_8_are_kept_apart() -> None:
    (value,) = read(framed_text(b'{"text": "caf\xe9 \xf0\x9f\x98\x8b"}'))
    assert value == {"text": "caf\udce9 😋"}


def test_a_message_that_is_too_large_is_named_and_not_kept() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reader, size = Reader(), 100_000_000
    head, tail = b'{"method":"textDocument/didOpen","text":"', b'","uri":"file:///a"}'
    list(reader.feed(b"Content-Length: %d\r\n\r\n%s" % (size, head)))
    left, chunk = size - len(head) - len(tail), bytes(65_536)
    began = time.monotonic()
    while left:
        assert not list(reader.feed(chunk[:left]))
        left -= min(left, len(chunk))
    (found, then) = list(reader.feed(tail + framed(A)))
    assert then == A
    assert isinstance(found, Malformed)
    assert "100 MB" in found.reason
    assert found.seen.startswith(head)
    assert found.seen.endswith(tail)
    assert len(found.seen) <= 2 * KEPT
    assert time.monotonic() - began < 10
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 20_000_000


def test_a_length_beyond_all_is_seen_through_after_megabytes_too() -> None:
    reader, values = Reader(), list[object]()
    junk = b"x" * 65_000 + b"\n"
    for chunk in (b"Content-Length: 900000000\r\n\r\n", *[junk] * 40, framed(A), junk, framed(B)):
        values += reader.feed(chunk)
    assert good(values) == [A, B]


def test_a_message_as_large_as_they_may_be() -> None:
    text = "x" * (LARGEST - 100)
    data = framed({"text": text})
    chunks = [data[i : i + 65_536] for i in range(0, len(data), 65_536)]
    assert read(*chunks, framed(A)) == [{"text": text}, A]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PRI"])
def test_a_browser_is_not_served(method: str) -> None:
    with pytest.raises(HttpRequest):
        read(f"{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LONG}\r\n\r\n".encode() + BODY)
