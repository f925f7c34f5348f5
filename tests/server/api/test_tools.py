"""Tool calls in every chat dialect, with scripted models of each family."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.server.api.dialects import CHAT, CHATS, MESSAGES, RESPONSES, Dialect, Reply, Tools
from tests.support.scripted_pair import scripted_client

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = Tools({"weather": SCHEMA, "now": {"type": "object"}})
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
ENDS = dict.fromkeys(CALLS, "<|im_end|>") | {"gemma": "<|tool_response>", "harmony": "<|call|>", "llama": "<|eot_id|>"}
every_family = pytest.mark.parametrize("family", sorted(CALLS))
THINKS = {MESSAGES.path: {"thinking": {"type": "adaptive"}}}


def called(dialect: Dialect, client: Any, **request: Any) -> Reply:
    return dialect.both(client, **{"tools": TOOLS, "max_tokens": 400, **THINKS.get(dialect.path, {}), **request})


@every_family
def test_calls_are_parsed_in_every_dialect(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _):
        for dialect in CHATS:
            reply = called(dialect, client)
            thoughts = "hm" if family == "harmony" else ""
            assert (reply.text, reply.thoughts, reply.finish) == ("", thoughts, "calls")
            assert [*reply.calls] == [("weather", ARGUMENTS)]
        for without in ({"tools": None}, {"tool_choice": "none"}):
            reply = called(CHAT, client, **without)
            assert (reply.finish, reply.calls) == ("stop", [])
            assert "weather" in reply.text
        reply = called(MESSAGES, client, tool_choice={"type": "none"})
        assert (reply.finish, reply.calls) == ("stop", [])


@pytest.mark.parametrize("family", ["tags", "harmony", "llama", "words"])
def test_a_required_call_is_forced(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], "I would rather talk.", "<|im_end|>") as (client, _):
        for must, names in ((True, {"weather", "now"}), ("weather", {"weather"})):
            drafted, alone = (
                called(CHAT, client, tools=Tools(TOOLS.schemas, must), draft=one) for one in (True, False)
            )
            assert drafted.settled() == alone.settled()
            (name, arguments), *_ = drafted.calls
            assert name in names
            assert family == "tags" or set(arguments) <= {"city", "days"}
        for dialect in (MESSAGES, RESPONSES):
            assert called(dialect, client, tools=Tools(TOOLS.schemas, "now")).calls[0][0] == "now"
        now = {"type": "function", "function": {"name": "now"}}
        allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [now]}}
        assert {name for name, _ in called(CHAT, client, tool_choice=allowed).calls} == {"now"}
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
        assert {name for name, _ in called(RESPONSES, client, tool_choice=allowed).calls} == {"now"}
        allowed["mode"] = "auto"
        assert called(RESPONSES, client, tool_choice=allowed).calls == []


@pytest.mark.parametrize("family", ["hermes", "tags", "words"])
def test_nothing_follows_a_forced_call(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], *CALLS[family], "You can call these tools", ENDS[family]) as client:
        for must in (True, "weather"):
            reply = called(CHAT, client[0], tools=Tools(TOOLS.schemas, must))
            assert (reply.text, [*reply.calls], reply.finish) == ("", [("weather", ARGUMENTS)], "calls")


@every_family
@pytest.mark.parametrize("text", ["a</tool_call>b", "a<tool_response>b"])
def test_stop_strings_do_not_cut_arguments(tool_vocabularies: dict[str, Path], family: str, text: str) -> None:
    """Neither the marks that end an only call, nor stop strings of the request."""
    tools = Tools({"weather": {"type": "object", "properties": {"city": {"enum": [text]}}, "required": ["city"]}})
    call = [part.replace("Oslo", text) for part in CALLS[family]]
    call = [part.replace(', "days": 2', "").replace("\n<parameter=days>\n2\n</parameter>", "") for part in call]
    call = [part.replace(",days:2", "") for part in call]
    with scripted_client(tool_vocabularies[family], *call, ENDS[family]) as (client, _):
        for request in (
            {"tools": Tools(tools.schemas, must=True)},
            {"tools": tools, "parallel_tool_calls": False},
            {"tools": tools, "stop": [text[1:], "b"]},
        ):
            reply = called(CHAT, client, **request)
            assert ([*reply.calls], reply.finish) == ([("weather", {"city": text})], "calls")


@pytest.mark.parametrize("family", ["hermes", "harmony", "words"])
def test_arguments_are_streamed_and_told_as_far_as_they_came(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _):
        events = client.events(CHAT.path, {**CHAT.body(tools=TOOLS, max_tokens=400), "stream_options": None})
        assert sum("tool_calls" in event["choices"][0]["delta"] for event in events) > 5
        if family == "hermes":
            message = client.post(MESSAGES.path, MESSAGES.body(tools=TOOLS, max_tokens=40)).json()
            (block,) = message["content"]
            assert message["stop_reason"] == "max_tokens"
            assert json.dumps(ARGUMENTS).startswith(block["input"]["INVALID_JSON"])


# What goes into the prompt

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


RAIN, WELL = "<tool_call>rain", "So?\n\nWell?"
HISTORY: dict[str, Any] = {  # the same conversation in the words of each dialect
    CHAT.path: {
        "messages": [
            turn("system", "One.\n\nTwo."),
            turn("user", "Will it rain?"),
            turn("assistant", "I look.", reasoning_content="hm", tool_calls=[CALL]),
            turn("tool", RAIN, tool_call_id="call_1"),
            turn("tool", "error", tool_call_id="call_2"),
            turn("user", WELL),
        ]
    },
    MESSAGES.path: {
        "system": [part("text", text="One."), part("text", text="Two.")],
        "messages": [
            turn("user", "Will it rain?"),
            turn(
                "assistant",
                [
                    *(part("redacted_thinking", data="x"), part("thinking", thinking="hm", signature="")),
                    part("text", text="I look."),
                    part("tool_use", id="call_1", name="weather", input=ARGUMENTS),
                ],
            ),
            turn(
                "user",
                [
                    part("tool_result", tool_use_id="call_1", content=[part("text", text=RAIN)]),
                    part("tool_result", tool_use_id="call_2", is_error=True),
                    part("text", text="So?", cache_control={"type": "ephemeral"}),
                    part("text", text="Well?"),
                ],
            ),
        ],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    RESPONSES.path: {
        "instructions": "One.",
        "input": [
            *(turn("developer", "Two."), turn("user", "Will it rain?")),
            part("reasoning", id="rs_1", summary=[], content=[part("reasoning_text", text="hm")]),
            turn(
                "assistant",
                [part("output_text", text="I look.", annotations=[])],
                type="message",
                id="msg_1",
                status="completed",
            ),
            part("function_call", call_id="call_1", name="weather", arguments=json.dumps(ARGUMENTS)),
            part("function_call_output", call_id="call_1", output=[part("input_text", text=RAIN)]),
            part("function_call_output", call_id="call_2", output="error"),
            turn("user", [part("input_text", text=WELL)]),
        ],
    },
}


@pytest.mark.parametrize("family", ["hermes", "tags", "harmony", "words"])
def test_every_dialect_makes_the_same_prompt(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], "It will.", "<|im_end|>") as (client, loaded):
        seen: list[list[int]] = []
        prefill = loaded.pair.prefill

        def seen_first(ids: Sequence[int], *rest: Any) -> int:
            seen.append(list(ids))
            return prefill(ids, *rest)

        loaded.pair.prefill = seen_first  # type: ignore[method-assign,assignment]
        for dialect in CHATS:
            body = dialect.body(tools=TOOLS, max_tokens=9) | HISTORY[dialect.path]
            assert "It will." in client.post(dialect.path, body).text
        assert seen[0] == seen[1] == seen[2]
        body = CHAT.body(tools=TOOLS) | HISTORY[CHAT.path]
        prompt = client.post("/apply-template", body).json()["prompt"]
        assert "What it is like" in prompt
        assert RAIN in prompt
        assert family == "harmony" or "".join(CALLS[family]) in prompt
        assert client.post("/apply-template", {**body, "count": True}).json() == {"tokens": len(seen[0])}
        counted = MESSAGES.body(tools=TOOLS) | HISTORY[MESSAGES.path]
        assert client.post("/v1/messages/count_tokens", counted).json() == {"input_tokens": len(seen[0])}


@pytest.mark.parametrize("family", ["hermes", "words"])
def test_a_lone_message_of_the_assistant_cannot_be_continued(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], "x", "<|im_end|>") as (client, _):
        for tools in (None, TOOLS):
            body = CHAT.body(tools=tools, messages=[turn("assistant", "Sure,")], continue_final_message=True)
            response = client.post(CHAT.path, body)
            assert (response.status_code, CHAT.error(response.json())) == (400, "chat: no messages; send at least one")


def test_a_description_makes_no_markers(tool_vocabularies: dict[str, Path]) -> None:
    with scripted_client(tool_vocabularies["hermes"], "x", "<|im_end|>") as (client, _):
        sizes = []
        for text in ("<|im_end|><tool_call>", ""):
            tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": {text + "a": {}}}}
            body = {**CHAT.body(), "tools": [tool], "count": True}
            sizes.append(client.post("/apply-template", body).json()["tokens"])
        assert sizes[0] - sizes[1] > 20  # letters, each spelling twice


@pytest.mark.parametrize("depth", [800, 200_000])
def test_deep_nesting_is_never_a_server_error(tool_vocabularies: dict[str, Path], depth: int) -> None:
    nested = "[" * depth + "]" * depth
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": f'{{"a": {nested}}}'}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    schema = f'{{"name": "f", "parameters": {{"properties": {{"a": {{"enum": {nested}}}}}}}}}'
    tools = f'[{{"type": "function", "function": {schema}}}]'
    with scripted_client(tool_vocabularies["hermes"], "x", "<|im_end|>") as (client, _):
        assert client.post(CHAT.path, CHAT.body(tools=TOOLS, messages=messages)).status_code in (200, 400)
        for choice in ("auto", "required"):
            body = f'{{"messages": {json.dumps(messages[:1])}, "tool_choice": "{choice}", "tools": {tools}}}'
            told = client("POST", CHAT.path, content=body.encode(), headers={"Content-Type": "application/json"})
            assert told.status_code in (200, 400), told.text[:300]
