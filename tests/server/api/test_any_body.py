"""Whatever JSON comes, every endpoint answers it or says in its own form what is wrong with it: nothing is a 500."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["auto", "user", "assistant", "text", "function", "tool_use", "tool", "json_schema", "message"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    *("type", "role", "content", "text", "name", "input", "id", "tool_use_id", "call_id", "arguments"),
                    *("output", "function", "parameters", "schema", "properties", "required", "effort", "format", "0"),
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
USER = {"role": "user", "content": "Hello"}
SOUND: dict[str, dict[str, Any]] = {
    "/v1/messages": {"messages": [USER], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [USER]},
    "/v1/responses": {"input": [USER], "max_output_tokens": 2},
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
}
FIELDS = {
    "/v1/messages": (
        *("messages", "system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences", "temperature"),
        *("top_k", "stream", "metadata", "max_tokens", "mcp_servers"),
    ),
    "/v1/messages/count_tokens": ("messages", "system", "tools", "tool_choice", "thinking", "model"),
    "/v1/responses": (
        *("input", "instructions", "tools", "tool_choice", "text", "reasoning", "store", "stream", "truncation"),
        *("previous_response_id", "parallel_tool_calls", "include", "max_output_tokens", "top_logprobs", "prompt"),
    ),
    "/v1/chat/completions": (
        *("messages", "tools", "tool_choice", "logit_bias", "presence_penalty", "frequency_penalty", "stop", "n"),
        *("response_format", "reasoning_effort", "prediction", "logprobs"),
    ),
    "/v1/completions": ("prompt", "suffix", "logit_bias", "presence_penalty", "stop", "logprobs", "n"),
}


def is_error(path: str, told: Any) -> bool:
    """Whether this is one error of one line in the form of the path's API."""
    if path.startswith("/v1/messages"):
        return (
            set(told) == {"type", "error"}
            and told["type"] == "error"
            and set(told["error"]) == {"type", "message"}
            and "\n" not in told["error"]["message"]
        )
    return set(told["error"]) == {"message", "type", "param", "code"} and "\n" not in told["error"]["message"]


@pytest.mark.parametrize("path", sorted(SOUND))
@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_any_body(client: Any, path: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(FIELDS[path]), min_size=1, max_size=2, unique=True))
    body = {**SOUND[path], **{name: data.draw(VALUES) for name in names}}
    response = client("POST", path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        assert is_error(path, response.json()), response.text


@pytest.mark.parametrize("path", sorted(SOUND))
@settings(max_examples=30, deadline=None, suppress_health_check=[*HealthCheck])
@given(body=VALUES)
def test_any_json(client: Any, path: str, body: Any) -> None:
    response = client("POST", path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
    is_sound = path == "/v1/responses" and isinstance(body, dict) and "input" in body  # the one key that it needs
    assert response.status_code == 400 or (is_sound and response.status_code == 200)
    assert response.status_code == 200 or is_error(path, response.json())
