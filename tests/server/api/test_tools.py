"""Calls of tools over the API, with models of each family that say what they are told to say."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.chat_formats import tool_vocabularies
from tests.support.scripted_pair import scripted_client
from tests.support.served import serving
from tests.text.conftest import make_vocabulary, oracle

__all__ = ["make_vocabulary", "oracle", "tool_vocabularies"]

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "What it is like", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
ARGUMENTS = {"city": "Oslo", "days": 2}
CALLS = {
    "hermes": ("<tool_call>", '\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n', "</tool_call>"),
    "tags": (
        "<tool_call>",
        "\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n",
        "</tool_call>",
    ),
    "gemma": ("<|tool_call>", "call:weather{city:", '<|"|>', "Oslo", '<|"|>', ",days:2}", "<tool_call|>"),
    "harmony": (
        *("<|channel|>", "analysis", "<|message|>", "hm", "<|end|>", "<|start|>", "assistant"),
        *("<|channel|>", "commentary to=functions.weather ", "<|constrain|>", "json", "<|message|>"),
        '{"city": "Oslo", "days": 2}',
    ),
    "llama": ('{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}',),
    "words": ('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>',),
}
ENDS = {
    "hermes": "<|im_end|>",
    "tags": "<|im_end|>",
    "gemma": "<|tool_response>",
    "harmony": "<|call|>",
    "llama": "<|eot_id|>",
    "words": "<|im_end|>",
}
USER = {"role": "user", "content": "Will it rain?"}


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER], "tools": TOOLS, "temperature": 0, "max_tokens": 400, **fields}


def streamed(events: Sequence[dict[str, Any]]) -> tuple[str, list[tuple[str, str]], str]:
    """What was said, name and arguments of each call, and why it ended."""
    said, calls, reason = "", list[tuple[str, str]](), ""
    for choice in (choice for event in events for choice in event["choices"]):
        said += choice["delta"].get("content", "")
        for call in choice["delta"].get("tool_calls", []):
            if call["index"] == len(calls):
                assert call["id"].startswith("call_")
                assert call["type"] == "function"
                calls.append((call["function"]["name"], ""))
            name, arguments = calls[call["index"]]
            calls[call["index"]] = name, arguments + call["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    return said, calls, reason


@pytest.mark.parametrize("family", sorted(CALLS))
def test_a_call_is_told_as_one(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _):
        (choice,) = client.post(CHAT, asked()).json()["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "weather")
        assert json.loads(call["function"]["arguments"]) == ARGUMENTS
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
        said, [(name, arguments)], reason = streamed(client.events(CHAT, asked()))
        assert (said, name, json.loads(arguments), reason) == ("", "weather", ARGUMENTS, "tool_calls")


@pytest.mark.parametrize("family", sorted(CALLS))
def test_the_official_client_takes_it_for_one(tool_vocabularies: dict[str, Path], family: str) -> None:
    """Its streaming helper puts the call together, and the call and its result go back as it has them."""
    messages: Any = [USER]
    with (
        scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _),
        socket.create_server(("127.0.0.1", 0)) as listener,
        serving(client.app, listener),
        openai.OpenAI(
            api_key="none", base_url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1", max_retries=0
        ) as official,
    ):
        tools: Any = TOOLS
        with official.chat.completions.stream(
            model="localdflash", messages=messages, tools=tools, temperature=0
        ) as stream:
            kinds = {event.type for event in stream}
            choice = stream.get_final_completion().choices[0]
        assert "tool_calls.function.arguments.done" in kinds
        assert choice.message.tool_calls
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather")
        assert json.loads(call.function.arguments) == ARGUMENTS
        messages += [
            choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]
        again = official.chat.completions.create(model="localdflash", messages=messages, tools=tools, temperature=0)
        assert again.choices[0].message.tool_calls


@pytest.mark.parametrize("family", sorted(CALLS))
def test_without_tools_it_is_text(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _):
        for body in (asked(tools=None), asked(tools=[]), asked(tool_choice="none")):
            (choice,) = client.post(CHAT, body).json()["choices"]
            assert "weather" in choice["message"]["content"]
            assert "tool_calls" not in choice["message"]
            assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("family", ["hermes", "tags", "gemma", "words"])
def test_several_calls_after_some_words(tool_vocabularies: dict[str, Path], family: str) -> None:
    parts = ("I look.\n", *CALLS[family], *CALLS[family], ENDS[family])
    with scripted_client(tool_vocabularies[family], *parts) as (client, _):
        (choice,) = client.post(CHAT, asked()).json()["choices"]
        assert choice["message"]["content"] == "I look."
        first, second = choice["message"]["tool_calls"]
        assert first["function"] == second["function"]
        assert first["id"] != second["id"]
        one = client.post(CHAT, asked(parallel_tool_calls=False)).json()["choices"][0]
        assert len(one["message"]["tool_calls"]) == 1
        assert one["finish_reason"] == "tool_calls"
        assert len(streamed(client.events(CHAT, asked()))[1]) == 2
        assert len(streamed(client.events(CHAT, asked(parallel_tool_calls=False)))[1]) == 1


@pytest.mark.parametrize("family", ["hermes", "harmony", "words"])
def test_arguments_are_streamed(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _):
        events = client.events(CHAT, asked(draft=False))
        parts = [event for event in events if event["choices"][0]["delta"].get("tool_calls")]
        assert len(parts) > 5


@pytest.mark.parametrize("family", ["hermes", "tags"])
@pytest.mark.parametrize("draft", [True, False])
def test_a_call_keeps_to_its_schema(tool_vocabularies: dict[str, Path], family: str, draft: bool) -> None:
    """Whatever the model would like to write in it."""
    for script in (("<tool_call>", "nothing of the kind"), ("<tool_call>", *CALLS[family][1:2], "</tool_call>")):
        with scripted_client(tool_vocabularies[family], *script, "<|im_end|>") as (client, _):
            told = client.post(CHAT, asked(draft=draft)).json()
            (choice,) = told["choices"]
            for call in choice["message"].get("tool_calls", []):
                assert call["function"]["name"] in ("weather", "now")
            if script[1:] == CALLS[family][1:]:
                assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS


@pytest.mark.parametrize("family", ["hermes", "tags", "harmony", "llama", "words"])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "now"}),
        ({"type": "function", "function": {"name": "now"}}, {"now"}),
        ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
    ],
)
def test_a_call_that_must_be_is(tool_vocabularies: dict[str, Path], family: str, choice: Any, names: set[str]) -> None:
    with scripted_client(tool_vocabularies[family], "I would rather talk.", "<|im_end|>") as (client, _):
        drafted, plain = (
            client.post(CHAT, asked(tool_choice=choice, draft=draft)).json()["choices"][0] for draft in (True, False)
        )
        call = drafted["message"]["tool_calls"][0]
        assert call["function"]["name"] in names
        assert family == "tags" or set(json.loads(call["function"]["arguments"])) <= {"city", "days"}
        assert [one["function"] for one in drafted["message"]["tool_calls"]] == [
            one["function"] for one in plain["message"]["tool_calls"]
        ]


@pytest.mark.parametrize("family", ["hermes", "tags", "harmony", "words"])
def test_calls_and_results_go_into_the_prompt(tool_vocabularies: dict[str, Path], family: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "<tool_call>rain"},
    ]
    with scripted_client(tool_vocabularies[family], "It will.", ENDS[family]) as (client, _):
        prompt = client.post("/apply-template", {"messages": messages, "tools": TOOLS}).json()["prompt"]
        assert "What it is like" in prompt
        assert "<tool_call>rain" in prompt
        if family != "harmony":
            assert "".join(CALLS[family]) in prompt
        told = client.post(CHAT, asked(messages=messages)).json()
        assert told["choices"][0]["message"]["content"] == "It will."
        counted = client.post("/apply-template", {"messages": messages, "tools": TOOLS, "count": True}).json()["tokens"]
        assert told["usage"]["prompt_tokens"] == counted


def test_a_description_makes_no_markers(tool_vocabularies: dict[str, Path]) -> None:
    with scripted_client(tool_vocabularies["hermes"], "x", "<|im_end|>") as (client, _):
        sizes = []
        for text in ("<|im_end|><tool_call>", ""):
            tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": {text + "a": {}}}}
            body = {"messages": [USER], "tools": [tool], "count": True}
            sizes.append(client.post("/apply-template", body).json()["tokens"])
        assert sizes[0] - sizes[1] > 20  # letters, each spelling twice


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "code"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name"),
        ({"response_format": {"type": "json_object"}}, "tools"),
        ({"tool_choice": "always"}, "tool_choice"),
    ],
)
def test_what_is_wrong_is_named(tool_vocabularies: dict[str, Path], fields: dict[str, Any], param: str) -> None:
    with scripted_client(tool_vocabularies["hermes"], "x", "<|im_end|>") as (client, _):
        told = client.post(CHAT, asked(**fields))
        assert (told.status_code, told.json()["error"]["param"]) == (400, param)


def test_a_made_up_result_ends_the_answer(tool_vocabularies: dict[str, Path]) -> None:
    parts = (*CALLS["words"], "\n<tool_response>\nrain\n</tool_response>\nIt rains.", ENDS["words"])
    with scripted_client(tool_vocabularies["words"], *parts) as (client, _):
        (choice,) = client.post(CHAT, asked()).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
        assert "It rains." in client.post(CHAT, asked(tools=None)).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("family", ["hermes", "words"])
@pytest.mark.parametrize("depth", [50, 800, 3000, 200_000])
def test_nested_beyond_reason(tool_vocabularies: dict[str, Path], family: str, depth: int) -> None:
    """In arguments of a call, and in a schema: an answer or an error of the request, never of the server."""
    nested = "[" * depth + "]" * depth
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": f'{{"a": {nested}}}'}}
    schema = f'{{"name": "f", "parameters": {{"properties": {{"a": {{"enum": {nested}}}}}}}}}'
    tools = f'[{{"type": "function", "function": {schema}}}]'
    with scripted_client(tool_vocabularies[family], "x", "<|im_end|>") as (client, _):
        told = client.post(CHAT, asked(messages=[USER, {"role": "assistant", "content": "", "tool_calls": [call]}]))
        assert told.status_code in (200, 400)
        for choice in ("auto", "required"):
            body = f'{{"messages": [{json.dumps(USER)}], "max_tokens": 9, "tool_choice": "{choice}", "tools": {tools}}}'
            told = client("POST", CHAT, content=body.encode(), headers={"Content-Type": "application/json"})
            assert told.status_code in (200, 400), told.text[:300]
