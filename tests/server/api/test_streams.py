"""Over a real socket: clients that leave, clients that wait, and several at once."""

import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

CHAT = "/v1/chat/completions"
ENDLESS = "root ::= " + "[a-z] " * 950  # no token of the end before
_FORM = {"type": "json_schema", "name": "x", "schema": {"type": "string", "minLength": 5000}}
FORMS: dict[str, Any] = {  # endless, too
    "/v1/messages": {"output_config": {"format": _FORM}},
    "/v1/responses": {"text": {"format": _FORM}},
}
LONG = {"messages": [{"role": "user", "content": "Write a long program."}], "temperature": 3.0, "seed": 1}


def send(live: Any, path: str, body: dict[str, Any]) -> socket.socket:
    """A request on a connection of its own, whose answer nobody has read."""
    data = json.dumps(body).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(live.socket))
    headers = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(data)}")
    connection.sendall("\r\n".join((f"POST {path} HTTP/1.1", *headers, "", "")).encode() + data)
    return connection


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/infill", "/v1/messages", "/v1/responses"])
def test_a_client_that_leaves_stops_its_request(live: Any, path: str, stream: bool) -> None:
    body = {**LONG, "prompt": "import", "input_prefix": "x", "max_tokens": 900, "n_predict": 500, "grammar": ENDLESS}
    if path in FORMS:
        body = {**LONG, "max_tokens": 900, "input": "Write a long program.", **FORMS[path]}
    cancelled, kept = live.scheduler.totals.cancelled, len(live.scheduler.totals.cancel_ms)
    connection = send(live, path, {**body, "stream": stream, "stop": ["never"], "stop_sequences": ["never"]})
    live.until(lambda: live.scheduler.running is not None and live.scheduler.running.request.stats.steps > 0)
    job = live.scheduler.running
    connection.close()
    live.until_idle()
    live.until(lambda: live.scheduler.totals.cancelled == cancelled + 1)
    assert job.request.stats.tokens < 500
    assert len(live.scheduler.totals.cancel_ms) == kept + 1
    assert live.scheduler.totals.cancel_ms[-1] < 500


@pytest.mark.usefixtures("slow")
def test_a_client_that_leaves_while_it_waits(live: Any) -> None:
    with send(live, CHAT, {**LONG, "max_tokens": 900, "stream": True, "grammar": ENDLESS}):
        live.until(lambda: live.scheduler.running is not None)
        waiting = send(live, CHAT, {**LONG, "max_tokens": 5})
        live.until(lambda: live.scheduler.queue_length == 1)
        waiting.close()
        live.until(lambda: live.scheduler.queue_length == 0)
    live.until_idle()


@pytest.mark.usefixtures("slow")
def test_a_full_queue(live: Any) -> None:
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(send(live, CHAT, {**LONG, "max_tokens": 900, "grammar": ENDLESS}))
        live.until(lambda: live.scheduler.queue_length == 4)
        with live.client() as client:
            for stream in (True, False):
                told = client.post(CHAT, json={**LONG, "stream": stream})
                assert told.status_code == 503
                assert told.headers["retry-after"] == "1"
                assert told.json()["error"]["code"] == "queue_full"
    live.until_idle()


@pytest.mark.usefixtures("slow")
def test_a_completion_does_not_wait_for_a_chat(live: Any) -> None:
    with send(live, CHAT, {**LONG, "max_tokens": 900, "grammar": ENDLESS}), live.client() as client:
        live.until(lambda: live.scheduler.running is not None and live.scheduler.running.request.stats.steps > 0)
        chat = live.scheduler.running
        told = client.post("/v1/completions", json={"prompt": "def f(", "suffix": "\n", "max_tokens": 4})
        assert told.status_code == 200
        assert not chat.request.finish_reason
    live.until_idle()


def test_the_newest_completion_of_a_document_cancels_the_older(live: Any) -> None:
    slow = {"prompt": "x = ", "max_tokens": 900, "grammar": ENDLESS, "document": "file:///a.py", "stream": True}
    with live.client() as client, client.stream("POST", "/v1/completions", json=slow) as older:
        lines = older.iter_lines()
        next(lines)
        told = client.post("/v1/completions", json={**slow, "max_tokens": 3, "stream": False}).json()
        assert told["usage"]["completion_tokens"] == 3
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert events[-1]["choices"][0]["finish_reason"] == "cancelled"
    live.until_idle()


def test_a_cancelled_request_does_not_go_on_with_its_next_choice(live: Any) -> None:
    slow = {"prompt": "x = ", "max_tokens": 900, "grammar": ENDLESS, "document": "file:///a.py", "stream": True}
    with live.client() as client, client.stream("POST", "/v1/completions", json={**slow, "n": 3}) as older:
        lines = older.iter_lines()
        next(lines)
        told = client.post("/v1/completions", json={**slow, "max_tokens": 60, "stream": False}).json()
        assert told["choices"][0]["finish_reason"] == "length"
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert {choice["index"] for event in events for choice in event["choices"]} == {0}
    assert events[-1]["choices"][0]["finish_reason"] == "cancelled"
    live.until_idle()


def test_a_slow_reader_holds_nobody_up(live: Any) -> None:
    body = {**LONG, "max_tokens": 900, "stream": True, "steps": True, "logprobs": True, "top_logprobs": 20}
    with send(live, CHAT, body), live.client() as client:
        live.until_idle()
        assert client.post(CHAT, json={**LONG, "max_tokens": 3}).status_code == 200


def test_an_error_in_the_middle_is_an_event(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from localdflash.base.errors import LocaldflashError

    step = live.worker.loaded.pair.step
    calls = 0

    def breaking(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise LocaldflashError("it broke")
        return step(*arguments)

    monkeypatch.setattr(live.worker.loaded.pair, "step", breaking)
    with live.client() as client, client.stream("POST", CHAT, json={**LONG, "max_tokens": 50, "stream": True}) as told:
        assert told.status_code == 200
        lines = [line for line in told.iter_lines() if line]
    assert json.loads(lines[-1][6:]) == {
        "error": {"message": "it broke", "type": "server_error", "param": None, "code": 500}
    }
    monkeypatch.undo()
    with live.client() as client:
        assert client.post(CHAT, json={**LONG, "max_tokens": 3}).status_code == 200


def test_several_clients_at_once_get_what_each_would_get_alone(live: Any) -> None:
    def ask(number: int) -> str:
        with live.client() as client:
            body = {**LONG, "messages": [{"role": "user", "content": f"Function number {number}"}], "seed": number}
            while True:
                told = client.post(CHAT, json={**body, "max_tokens": 24, "temperature": 0.8})
                if told.status_code == 200:
                    return str(told.json()["choices"][0]["message"]["content"])
                assert told.status_code == 503
                threading.Event().wait(0.02)

    alone = [ask(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == alone


def test_a_connection_serves_many_requests(live: Any) -> None:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(live.socket))
    for path in ("/health", "/nothing", "/v1/models", "/health"):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert json.loads(answer.read())
    connection.close()


@pytest.mark.parametrize(
    "header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Authorization": "Bearer no"}]
)
def test_the_guard_on_tcp(live: Any, header: dict[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", live.port)
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {live.key}", **header})
    answer = connection.getresponse()
    assert answer.status in (401, 403, 421)
    assert set(json.loads(answer.read())["error"]) == {"message", "type", "param", "code"}
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {live.key}"})
    assert connection.getresponse().status == 200
    connection.close()
