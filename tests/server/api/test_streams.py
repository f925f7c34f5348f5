"""Streams over a real socket: clients that disconnect, wait, or read slowly."""

import json
import socket
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from localdflash.engine.host_pair import HostPair
from localdflash.server.api import http_responses
from tests.server.api.dialects import CHAT, COMPLETIONS, DIALECTS, MESSAGES, RESPONSES, Dialect

ENDLESS = "root ::= " + "[a-z] " * 950  # no token of the end before
LONG = {"messages": [{"role": "user", "content": "Write a long program."}], "temperature": 3.0, "seed": 1}
FORM = {"type": "string", "minLength": 5000}  # endless, too


def send(live: Any, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request on a new connection; its answer is unread."""
    data = json.dumps(body).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(live.socket))
    headers = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(data)}")
    connection.sendall("\r\n".join((f"POST {path} HTTP/1.1", *headers, "", "")).encode() + data)
    return connection


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("dialect", "stream"),
    [*((dialect, True) for dialect in DIALECTS), (CHAT, False)],
    ids=lambda one: one.path if isinstance(one, Dialect) else str(one),
)
def test_a_client_that_leaves_stops_its_request(live: Any, dialect: Dialect, stream: bool) -> None:
    form = {"schema": FORM} if dialect in (MESSAGES, RESPONSES) else {"grammar": ENDLESS}
    cancelled, kept = live.scheduler.totals.cancelled, len(live.scheduler.totals.cancel_ms)
    body = dialect.body(max_tokens=900, temperature=3.0, stream=stream, **form)
    connection = send(live, dialect.path, body)
    live.until(lambda: live.scheduler.running is not None and live.scheduler.running.request.stats.steps > 0)
    job = live.scheduler.running
    connection.close()
    live.until_idle()
    live.until(lambda: live.scheduler.totals.cancelled == cancelled + 1)
    assert job.request.stats.tokens < 500
    assert len(live.scheduler.totals.cancel_ms) == kept + 1
    assert live.scheduler.totals.cancel_ms[-1] < 500


@pytest.mark.usefixtures("slow")
def test_a_queue(live: Any) -> None:
    """A waiting client that disconnects leaves the queue; a full queue answers 503; completions go before chats."""
    endless = {**LONG, "max_tokens": 900, "grammar": ENDLESS}
    with ExitStack() as stack, live.client() as client:
        stack.enter_context(send(live, CHAT.path, endless))
        live.until(lambda: live.scheduler.running is not None and live.scheduler.running.request.stats.steps > 0)
        chat = live.scheduler.running
        place = {"prompt": "def f(", "suffix": "\n", "max_tokens": 2}
        assert client.post(COMPLETIONS.path, json=place).status_code == 200
        assert not chat.request.finish_reason
        waiting = send(live, CHAT.path, {**LONG, "max_tokens": 5})
        live.until(lambda: live.scheduler.queue_length == 1)
        waiting.close()
        live.until(lambda: live.scheduler.queue_length == 0)
        for _ in range(4):
            stack.enter_context(send(live, CHAT.path, endless))
        live.until(lambda: live.scheduler.queue_length == 4)
        for stream in (True, False):
            told = client.post(CHAT.path, json={**LONG, "stream": stream})
            assert (told.status_code, told.headers["retry-after"]) == (503, "1")
            assert told.json()["error"]["code"] == "queue_full"
    live.until_idle()


@pytest.mark.usefixtures("slow")
def test_the_newest_completion_of_a_document_cancels_the_older_with_its_choices(live: Any) -> None:
    body = {"prompt": "x = ", "max_tokens": 900, "grammar": ENDLESS, "document": "file:///a.py", "stream": True}
    with live.client() as client, client.stream("POST", COMPLETIONS.path, json={**body, "n": 3}) as older:
        lines = older.iter_lines()
        next(lines)
        newer = {"document": body["document"], "prefix": "x = ", "suffix": "\n", "max_tokens": 3, "stream": False}
        assert client.post("/complete", json=newer).json()["choices"][0]["finish"] != "cancelled"
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert {choice["index"] for event in events for choice in event["choices"]} == {0}
    assert events[-1]["choices"][0]["finish_reason"] == "cancelled"
    live.until_idle()


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES], ids=lambda dialect: dialect.path)
def test_bytes_arrive_while_a_prompt_is_read(live: Any, monkeypatch: pytest.MonkeyPatch, dialect: Dialect) -> None:
    reading = threading.Event()
    prefill = HostPair.prefill

    def held(pair: HostPair, *arguments: Any) -> int:
        assert reading.wait(30)
        return prefill(pair, *arguments)

    monkeypatch.setattr(HostPair, "prefill", held)
    monkeypatch.setattr(http_responses, "HEADERS_SECONDS", 0.01)
    monkeypatch.setattr(http_responses, "PING_SECONDS", 0.01)
    with live.client() as client, client.stream("POST", dialect.path, json=dialect.body(stream=True)) as answer:
        assert answer.status_code == 200
        pieces = answer.iter_text()
        pings = [next(pieces), next(pieces)]
        reading.set()
        text = "".join([*pings, *pieces])
    assert text.startswith((": ping\n\n", 'event: ping\ndata: {"type":"ping"}\n\n'))
    assert dialect.add_up(text).text


def test_a_slow_reader_holds_nobody_up(live: Any) -> None:
    body = {**LONG, "max_tokens": 250, "stream": True, "steps": True, "logprobs": True, "top_logprobs": 20}
    with send(live, CHAT.path, body), live.client() as client:
        live.until(lambda: live.scheduler.running is not None)
        live.until(lambda: live.scheduler.running is None, 60)
        assert client.post(CHAT.path, json={**LONG, "max_tokens": 3}).status_code == 200
