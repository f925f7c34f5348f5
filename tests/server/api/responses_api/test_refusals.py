"""What is wrong with a request of OpenAI's Responses is named."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.api.responses_api.test_responses import RESPONSES, TOOLS, USER, asked
from tests.server.api.test_bad_input import error
from tests.support.chat_formats import tool_vocabularies
from tests.support.scripted_pair import scripted_client
from tests.text.conftest import make_vocabulary, oracle

__all__ = ["make_vocabulary", "oracle", "tool_vocabularies"]

IMAGE = {"type": "input_image", "image_url": "data:x"}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [USER, {"role": "user"}]}, "input[1]"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": [IMAGE]}]}, "input[0].output[0]"),
        ({"instructions": 5}, "instructions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": {"required": {}}}]},
            "tools[0].parameters.required",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"presence_penalty": None, "echo": True}, "echo"),
    ],
)
def test_a_wrong_field_is_named(tool_vocabularies: dict[str, Path], change: dict[str, Any], place: str) -> None:
    with scripted_client(tool_vocabularies["hermes"], "x", "<|im_end|>") as (client, _):
        told = error(client.post(RESPONSES, asked(**change)), 400, place)
        assert told["message"].startswith(f"{place}: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", {"id": "conv_1"}),
        ("prompt", {"id": "pmpt_1"}),
        ("store", True),
        ("background", True),
    ],
)
def test_what_would_have_to_be_kept_is_refused_in_one_line(client: Any, name: str, value: Any) -> None:
    told = error(client.post(RESPONSES, asked(**{name: value})), 400, name)
    assert told["code"] == "unsupported_parameter"
    assert "send the whole conversation as input" in told["message"]
    assert client.post(RESPONSES, asked(**{name: None}, max_output_tokens=2)).status_code == 200


def test_neutral_and_unknown_fields_are_fine(client: Any) -> None:
    neutral = {"store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "x", "user": "me"}
    assert client.post(RESPONSES, asked(**neutral, max_output_tokens=2, something={"new": 1})).status_code == 200
