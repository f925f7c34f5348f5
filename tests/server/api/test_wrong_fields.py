"""Invalid fields are named in one line: one example for each check of each dialect."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.api.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, USER, Dialect
from tests.support.scripted_pair import scripted_client


def tool(name: str, **schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **({"parameters": schema} if schema else {})}}


def user(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def assistant(*blocks: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "content": list(blocks)}]


TOOL = {"name": "f", "input_schema": {}}
CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
INPUT_PICTURE = {"type": "input_image", "image_url": "data:x"}
TABLE: dict[Dialect, list[tuple[dict[str, Any], str]]] = {
    CHAT: [
        ({"messages": []}, "messages"),
        ({"messages": ["Hello"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "Hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("f", properties=[])]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": tool("f")}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": tool("other")}, "tool_choice"),
        ({"tools": [tool("f")], "response_format": {"type": "json_object"}}, "tools"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"seed": -2}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"n": 17}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "x"'}, "response_format"),
        ({"chat_template_kwargs": {"enable_thinking": []}}, "chat_template_kwargs[...]"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"6144": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": [[5, False]]}, "logit_bias[0][1]"),
        ({"best_of": 2}, "best_of"),
        ({"samplers": ["top_k", "adaptive_p"]}, "samplers[1]"),
        ({"samplers": "kpt"}, "samplers"),
        ({"top_n_sigma": 1.0}, "top_n_sigma"),
    ],
    COMPLETIONS: [
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 2], "suffix": "x"}, "suffix"),
        ({"prompt": ["a", "b"], "n": 9}, "n"),
        ({"logprobs": -1}, "logprobs"),
    ],
    MESSAGES: [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "system", "content": [CALL]}]}, "messages[0].content[0]"),
        ({"messages": user({"type": "video"})}, "messages[0].content[0].type"),
        ({"messages": user(PICTURE)}, "messages[0].content[0]"),
        ({"messages": user({"type": "document", "source": {"type": "url"}})}, "messages[0].content[0]"),
        ({"messages": user(CALL)}, "messages[0].content[0]"),
        (
            {"messages": user({"type": "tool_result", "tool_use_id": "1", "content": [PICTURE]})},
            "messages[0].content[0].content[0]",
        ),
        ({"messages": assistant(PICTURE)}, "messages[1].content[0]"),
        ({"messages": assistant({"type": "tool_result", "tool_use_id": "1"})}, "messages[1].content[0]"),
        ({"messages": assistant(CALL)}, "messages[1]"),
        ({"system": [PICTURE]}, "system[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": {"properties": []}}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    ],
    RESPONSES: [
        ({"input": []}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [USER, {"role": "user"}]}, "input[1]"),
        ({"input": [{"role": "user", "content": [INPUT_PICTURE]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_file"}]}]},
            "input[0].output[0]",
        ),
        ({"tools": [{"type": "namespace", "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"required": {}}}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "other"}},
            "tool_choice",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, "include"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        # Nothing is kept here.
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ],
}
KEPT = ("previous_response_id", "conversation", "prompt", "background")


@pytest.fixture
def knowing_tools(tool_vocabularies: dict[str, Path]) -> Iterator[Any]:
    with scripted_client(tool_vocabularies["hermes"], "x", "<|im_end|>") as (client, _):
        yield client


@pytest.mark.parametrize("dialect", TABLE, ids=lambda dialect: dialect.path)
def test_a_wrong_field_is_named(knowing_tools: Any, dialect: Dialect) -> None:
    for change, place in TABLE[dialect]:
        response = knowing_tools.post(dialect.path, {**dialect.body(), **change})
        assert response.status_code == 400, (change, response.text)
        message = dialect.error(response.json())
        if dialect in (MESSAGES, RESPONSES):
            assert message.startswith(f"{place}: "), change
        if dialect is not MESSAGES:
            assert response.json()["error"]["param"] == place, change
        if dialect is RESPONSES and place in KEPT:
            assert "send the whole conversation as input" in message


def test_no_such_path(client: Any) -> None:
    for path in ("/", "/v1", "/v1//models", "/v1/chat/completions/", "/../etc/passwd"):
        response = client.get(path)
        assert response.status_code == 404
        CHAT.error(response.json())
    for path in ("/v1/embeddings", "/embeddings", "/embedding", "/rerank", "/v1/rerank"):
        response = client.post(path, {"input": "x", "model": "embedded"})
        assert response.status_code == 501
        assert CHAT.error(response.json()).startswith("embeddings and reranking are not supported: ")
    response = client.post("/slots/0?action=erase", {})
    assert response.status_code == 501
    assert CHAT.error(response.json()).startswith("slots cannot be saved, restored or erased; ")


def test_an_unknown_field_is_quoted_on_one_line(client: Any) -> None:
    response = client.post("/load", {"a\nb": None})
    assert response.status_code == 400
    assert CHAT.error(response.json()) == "Object contains unknown field `a\\nb`"
