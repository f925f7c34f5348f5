"""What is wrong with a request is one line in Anthropic's shape, which names the place."""

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.api.anthropic.test_messages import MESSAGES, TOOLS, USER, asked
from tests.support.chat_formats import tool_vocabularies
from tests.support.message_events import events_of
from tests.support.scripted_pair import scripted_client
from tests.text.conftest import make_vocabulary, oracle

__all__ = ["make_vocabulary", "oracle", "tool_vocabularies"]


def error(response: Any, status: int, kind: str = "invalid_request_error") -> str:
    assert response.status_code == status, response.text
    told = response.json()
    assert set(told) == {"type", "error"}
    assert (told["type"], set(told["error"]), told["error"]["type"]) == ("error", {"type", "message"}, kind)
    assert "\n" not in told["error"]["message"]
    return str(told["error"]["message"])


def user(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def assistant(*blocks: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "content": list(blocks)}]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": user({"type": "video"})}, "messages[0].content[0].type"),
        ({"messages": user(IMAGE)}, "messages[0].content[0]"),
        ({"messages": user({"type": "document", "source": {}})}, "messages[0].content[0]"),
        ({"messages": user({"type": "text"})}, "messages[0].content[0]"),
        ({"messages": user(CALL)}, "messages[0].content[0]"),
        ({"messages": user({"type": "tool_result"})}, "messages[0].content[0]"),
        (
            {"messages": user({"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]})},
            "messages[0].content[0].content[0]",
        ),
        ({"messages": assistant(IMAGE)}, "messages[1].content[0]"),
        ({"messages": assistant({"type": "tool_result", "tool_use_id": "1"})}, "messages[1].content[0]"),
        ({"messages": assistant({**CALL, "input": "{}"})}, "messages[1].content[0].input"),
        ({"messages": assistant(CALL)}, "messages[1]"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": {"properties": []}}]}, "tools[0].input_schema.properties"),
        ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"thinking": True}, "thinking"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"temperature": "hot"}, "temperature"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"presence_penalty": None, "functions": [{}]}, "functions"),
    ],
)
def test_a_wrong_field_is_named(tool_vocabularies: dict[str, Path], change: dict[str, Any], place: str) -> None:
    with scripted_client(tool_vocabularies["hermes"], "x", "<|im_end|>") as (client, _):
        assert error(client.post(MESSAGES, asked(**change)), 400).startswith(f"{place}: ")


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens"])
def test_other_errors_have_the_shape_too(client: Any, path: str) -> None:
    assert "did you mean" in error(client.post(path, asked(model="embeded")), 404, "not_found_error")
    error(client("GET", path), 405)
    error(client("GET", f"{MESSAGES}/batches"), 404, "not_found_error")
    headers = {"content-type": "application/json"}
    error(client("POST", path, content=b"{", headers=headers), 400)
    error(client("POST", path, content=b"{}", headers={"content-type": "text/plain"}), 415)
    long = {**headers, "content-length": str(2**40)}
    error(client("POST", path, content=b"{}", headers=long), 413, "request_too_large")


def test_a_prompt_that_does_not_fit_is_counted_and_refused(client: Any) -> None:
    body = asked(messages=[{"role": "user", "content": "word " * 3000}])
    count = client.post(f"{MESSAGES}/count_tokens", body).json()["input_tokens"]
    assert f"{count} tokens: the context holds 1024" in error(client.post(MESSAGES, body), 400)


def test_an_error_in_the_middle_is_an_event(client: Any, worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from localdflash.base.errors import LocaldflashError

    step, calls = worker.loaded.pair.step, 0

    def breaking(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise LocaldflashError("it broke")
        return step(*arguments)

    monkeypatch.setattr(worker.loaded.pair, "step", breaking)
    response = client.post(MESSAGES, {**asked(temperature=3.0, seed=1), "stream": True})
    assert events_of(response.text)[-1] == {"type": "error", "error": {"type": "api_error", "message": "it broke"}}


def test_what_nobody_expected_is_an_error_of_the_shape(
    client: Any, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.loaded.pair, "step", lambda *_: 1 / 0)
    assert "log says more" in error(client.post(MESSAGES, asked()), 500, "api_error")


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({}, 401, "authentication_error"),
        ({"x-api-key": "wrong"}, 401, "authentication_error"),
        ({"x-api-key": "right", "Origin": "http://evil.example"}, 403, "permission_error"),
        ({"x-api-key": "right", "Host": "evil.example"}, 421, "invalid_request_error"),
    ],
)
def test_the_guard_speaks_it(live: Any, headers: dict[str, str], status: int, kind: str) -> None:
    known = {name: live.key if value == "right" else value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", live.port)
    connection.request("POST", MESSAGES, body=b"{}", headers=known)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    assert (answer.status, told["type"], told["error"]["type"]) == (status, "error", kind)
    connection.close()


def test_the_key_of_anthropics_clients_is_taken(live: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", live.port)
    headers = {"x-api-key": live.key, "anthropic-version": "2023-06-01", "Content-Type": "application/json"}
    connection.request("POST", f"{MESSAGES}?beta=true", body=json.dumps(asked(max_tokens=2)), headers=headers)
    assert connection.getresponse().status == 200
    connection.close()
