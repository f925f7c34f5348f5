import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from localdflash.server.api import request_body
from localdflash.server.engines import Engines
from localdflash.server.http_app import create_app
from localdflash.server.worker import PairWorker

CHAT, COMPLETIONS, INFILL = "/v1/chat/completions", "/v1/completions", "/infill"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


def error(response: httpx2.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """The error of a response, in OpenAI's shape."""
    assert response.status_code == status, response.text
    told = response.json()
    assert list(told) == ["error"]
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert told["error"]["message"]
    assert "\n" not in told["error"]["message"]
    assert told["error"]["param"] == param
    assert isinstance(told["error"], dict)
    return dict(told["error"])


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"nonsense", b"{'a': 1}", b"\xff\xfe{}", b'{"messages": [}', b"[" * 100_000),
        *(b'{"temperature": NaN, "messages": []}', b'{"temperature": Infinity}', b'{"a":' + b"[" * 50_000),
        *(b'{"prompt": "\\ud800"}', b'{"x": 1} {"y": 2}'),
    ],
)
@pytest.mark.parametrize("path", [CHAT, INFILL])
def test_what_is_no_json(client: Any, path: str, data: bytes) -> None:
    told = error(client("POST", path, content=data, headers={"content-type": "application/json"}), 400)
    assert told["type"] == "invalid_request_error"


@pytest.mark.parametrize("data", [b"[1]", b"null", b'"text"', b"5"])
def test_json_that_is_no_object(client: Any, data: bytes) -> None:
    error(client("POST", CHAT, content=data, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": "Hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["Hello"]}, "messages[0]"),
        ({"messages": [{"content": "Hello"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "Hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 11}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": -2}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 2**64}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "x"'}, "response_format"),
        ({"json_schema": [], "messages": HELLO["messages"]}, "json_schema"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs[...]"),
        ({"document": 5}, "document"),
        ({"model": 5}, "model"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": "much"}, "frequency_penalty"),
        ({"logit_bias": 5}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {"6144": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": [[5, False]]}, "logit_bias[0][1]"),
    ],
)
def test_a_wrong_field_is_named(client: Any, change: dict[str, Any], param: str) -> None:
    told = error(client.post(CHAT, {**HELLO, **change}), 400, param)
    assert told["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{}]),
        ("function_call", {"name": "f"}),
        ("audio", {}),
        ("modalities", ["text", "audio"]),
        ("best_of", 2),
        ("echo", True),
        ("mirostat", 2),
        ("lora", [{"id": 0}]),
        ("ignore_eos", True),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(client: Any, name: str, value: Any) -> None:
    told = error(client.post(CHAT, {**HELLO, name: value}), 400, name)
    assert told["code"] == "unsupported_parameter"
    assert client.post(CHAT, {**HELLO, name: None}).status_code == 200


def test_neutral_and_unknown_fields_are_fine(client: Any) -> None:
    neutral = {name: values[0] for name, values in request_body.UNSUPPORTED.items() if values}
    assert client.post(CHAT, {**HELLO, **neutral, "user": "me", "something": {"new": 1}}).status_code == 200


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ({"grammar": "root ::= ("}, "GBNF"),
        ({"grammar": "nothing"}, "GBNF"),
        ({"json_schema": {"type": "nothing"}}, "JSON schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}}, "JSON schema"),
    ],
)
def test_a_bad_grammar(client: Any, grammar: dict[str, Any], said: str) -> None:
    assert said in error(client.post(CHAT, {**HELLO, **grammar}), 400)["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1, 2], "suffix": "x"}, "suffix"),
        ({"prompt": ["a", "b"], "n": 9}, "n"),
        ({"suffix": 5}, "suffix"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_wrong_fields_of_a_completion(client: Any, change: dict[str, Any], param: str) -> None:
    error(client.post(COMPLETIONS, {"prompt": "def", **change}), 400, param)


@pytest.mark.parametrize("prompt", ["", [6144], [2**31 - 1]])
def test_a_prompt_that_is_none(client: Any, prompt: Any) -> None:
    assert "prompt: " in error(client.post(COMPLETIONS, {"prompt": prompt}), 400)["message"]


def test_a_prompt_that_does_not_fit(client: Any) -> None:
    long = "word " * 2000
    told = error(client.post(CHAT, {"messages": [{"role": "user", "content": long}]}), 400, "messages")
    assert told["code"] == "context_length_exceeded"
    assert "1024" in told["message"]
    told = error(client.post(COMPLETIONS, {"prompt": long}), 400, "prompt")
    tokens = client.post("/tokenize", {"content": long}).json()["tokens"]
    assert f"the prompt has {len(tokens)} tokens: the context holds 1024" in told["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, INFILL, "/completion", "/apply-template"])
def test_an_unknown_model(client: Any, path: str) -> None:
    told = error(client.post(path, {**HELLO, "prompt": "x", "model": "embeded"}), 404, "model")
    assert "did you mean 'embedded'?" in told["message"]
    assert told["code"] == "model_not_found"


def test_a_model_that_is_known_but_not_loaded(client: Any) -> None:
    told = error(client.post(CHAT, {**HELLO, "model": "qwen3-8b"}), 404, "model")
    assert told["message"].startswith("model 'qwen3-8b' is not loaded, 'embedded' is")


@pytest.mark.parametrize("model", ["embedded", "localdflash", "", None])
def test_names_of_the_loaded_model(client: Any, model: str | None) -> None:
    assert client.post(CHAT, {**HELLO, "model": model}).json()["model"] == "embedded"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/chat", "/v1/chat/completions/", "//v1/models", "/../etc/passwd", "/api/generate"]
)
def test_no_such_path(client: Any, path: str) -> None:
    error(client.get(path), 404)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", CHAT), ("PUT", CHAT), ("DELETE", "/v1/models"), ("POST", "/health")]
)
def test_a_wrong_method(client: Any, method: str, path: str) -> None:
    response = client(method, path)
    error(response, 405)
    assert response.headers["allow"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_wrong_media_type(client: Any, kind: str) -> None:
    error(client("POST", CHAT, content=b"{}", headers={"content-type": kind}), 415)


def test_media_types_may_have_parameters(client: Any) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    content = b'{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}'
    assert client("POST", CHAT, content=content, headers=headers).status_code == 200


def test_a_body_that_says_it_is_too_large(client: Any) -> None:
    headers = {"content-type": "application/json", "content-length": str(request_body.LARGEST + 1)}
    error(client("POST", CHAT, content=b"{}", headers=headers), 413)


def test_a_body_is_not_read_beyond_the_limit(client: Any) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1 << 20
            yield b" " * (1 << 20)

    error(client("POST", CHAT, content=endless(), headers={"content-type": "application/json"}), 413)
    assert read <= request_body.LARGEST + (2 << 20)


def test_what_nobody_expected_tells_nothing(
    client: Any, worker: PairWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the secret text of a user")

    monkeypatch.setattr(worker, "stream", broken)
    with caplog.at_level(logging.DEBUG):
        told = error(client.post(CHAT, HELLO), 500)
    assert told == {
        "message": "an error inside of localdflash: its log says more",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


def test_no_request_leaves_its_text_in_the_log(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        client.post(CHAT, {"messages": [{"role": "user", "content": "canary" * 3000}]})
        client.post(CHAT, {"messages": [{"role": "user", "content": "canary"}], "max_tokens": 2})
        client.post(COMPLETIONS, {"prompt": "canary", "max_tokens": 2, "stream": True})
    assert "canary" not in caplog.text


def test_a_model_that_cannot_be_loaded(client_of: Any) -> None:
    from localdflash.models.load_options import Options
    from localdflash.server.api.metrics import Metrics

    worker = PairWorker(Options("no-such-pair", backend="llama.cpp"), 0, 1, Metrics().observe)
    client = client_of(create_app(Engines(worker)))
    worker.start()
    with pytest.raises(Exception, match="no-such-pair"):
        asyncio.run(worker.ready())
    told = error(client.post(CHAT, HELLO), 503)
    assert "no-such-pair" in told["message"]
    assert told["code"] == "model_not_loaded"
    health = client.get("/health")
    assert health.status_code == 503
    assert health.json()["error"]["code"] == 503
    assert client.get("/ps").json()["pair"] == "no-such-pair"
    worker.close()
