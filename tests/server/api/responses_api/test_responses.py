"""POST /v1/responses, with the official client and the types of its events as the oracle."""

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server.api.test_tools import ARGUMENTS, CALLS, ENDS, SCHEMA
from tests.support.chat_formats import tool_vocabularies, vocabularies
from tests.support.scripted_pair import scripted_client
from tests.support.served import serving
from tests.text.conftest import make_vocabulary, oracle

__all__ = ["make_vocabulary", "oracle", "tool_vocabularies", "vocabularies"]

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
USER = {"role": "user", "content": "Will it rain?"}
TOOLS: Any = [
    {"type": "function", "name": "weather", "description": "What it is like", "parameters": SCHEMA, "strict": True},
    {"type": "function", "name": "now"},
]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def asked(**fields: Any) -> dict[str, Any]:
    return {"input": "Will it rain?", "temperature": 0, "max_output_tokens": 200, **fields}


def events_of(client: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream: named and numbered, and each of the client's own type."""
    response = client.post(RESPONSES, {**body, "stream": True})
    assert response.status_code == 200, response.text
    *blocks, rest = response.text.split("\n\n")
    assert rest == ""
    events = list[dict[str, Any]]()
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        EVENT.validate_python(event)
        events.append(event)
    return events


def told(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    """The response, which the events add up to as well."""
    answer = client.post(RESPONSES, body)
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json())
    events = events_of(client, body)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == f"response.{events[-1]['response']['status']}"
    streamed = events[-1]["response"]
    assert _put_together(events) == streamed["output"]
    for response in (whole := answer.json(), streamed):
        assert response.pop("id").startswith("resp_")
        for item in response["output"]:
            assert (
                item.pop("id").split("_")[0]
                == {"message": "msg", "function_call": "fc", "reasoning": "rs"}[item["type"]]
            )
            assert item.pop("call_id", "call_").startswith("call_")
        for name in ("created_at", "completed_at"):
            response.pop(name)
        response["usage"].pop("input_tokens_details")
    assert streamed == whole
    return dict(whole)


def _put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output by the deltas alone."""
    output = list[dict[str, Any]]()
    for event in events[2:-1]:
        item = output[event["output_index"]] if event["output_index"] < len(output) else {}
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(output)
                output.append(event["item"])
            case "response.content_part.added":
                item["content"].append(event["part"])
            case "response.output_text.delta" | "response.reasoning_text.delta":
                item["content"][event["content_index"]]["text"] += event["delta"]
            case "response.function_call_arguments.delta":
                item["arguments"] += event["delta"]
            case "response.output_text.done" | "response.reasoning_text.done":
                assert item["content"][0]["text"] == event["text"]
            case "response.function_call_arguments.done":
                assert (item["arguments"] or "{}", item["name"]) == (event["arguments"], event["name"])
                item["arguments"] = event["arguments"]
            case "response.content_part.done":
                assert item["content"][0] == event["part"]
            case "response.output_item.done":
                item["status"] = event["item"]["status"]
                assert item == event["item"]
        assert event.get("item_id", item.get("id")) == item.get("id")
    return output


def test_an_answer_is_that_of_the_chat(client: Any) -> None:
    response = told(client, asked(instructions="Be brief.", max_output_tokens=24, store=False, metadata={"a": "b"}))
    chat = {"messages": [{"role": "system", "content": "Be brief."}, USER], "temperature": 0, "max_tokens": 24}
    expected = client.post(CHAT, chat).json()
    part = {"type": "output_text", "text": expected["choices"][0]["message"]["content"], "annotations": []}
    assert response["output"] == [
        {"type": "message", "role": "assistant", "status": "incomplete", "content": [{**part, "logprobs": []}]}
    ]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["usage"] == {
        "input_tokens": expected["usage"]["prompt_tokens"],
        "output_tokens": 24,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": expected["usage"]["total_tokens"],
    }


def test_drafts_change_nothing(client: Any) -> None:
    for sampled in ({}, {"temperature": 0.9, "top_p": 0.95, "seed": 5}):
        drafted, plain = (told(client, asked(**sampled, max_output_tokens=40, draft=draft)) for draft in (True, False))
        assert drafted == plain


@pytest.mark.parametrize("family", sorted(CALLS))
def test_a_call_is_an_item(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _):
        response = told(client, asked(tools=TOOLS))
        *thoughts, call = response["output"]
        assert [item["content"][0]["text"] for item in thoughts] == (["hm"] if family == "harmony" else [])
        assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
        assert json.loads(call["arguments"]) == ARGUMENTS
        assert response["status"] == "completed"


@pytest.mark.parametrize(
    ("choice", "names"), [("required", {"weather", "now"}), ({"type": "function", "name": "now"}, {"now"})]
)
def test_a_call_that_must_be_is(tool_vocabularies: dict[str, Path], choice: Any, names: set[str]) -> None:
    with scripted_client(tool_vocabularies["hermes"], "I would rather talk.", "<|im_end|>") as (client, _):
        (item, *_) = told(client, asked(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False))["output"]
        assert item["type"] == "function_call"
        assert item["name"] in names


def test_thoughts_are_an_item(vocabularies: dict[str, Path]) -> None:
    said = ("<think>", "\nhm\n", "</think>", "\n\nYes.")
    with scripted_client(vocabularies["qwen3"], *said, "<|im_end|>") as (client, loaded):
        response = told(client, asked(reasoning={"effort": "max"}))
        thoughts, message = response["output"]
        assert thoughts["content"] == [{"type": "reasoning_text", "text": "hm"}]
        assert message["content"][0]["text"] == "Yes."
        thought = len(loaded.tokenizer.encode("hm"))
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == thought


def test_items_are_the_messages_of_the_chat(tool_vocabularies: dict[str, Path]) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}
    theirs = [
        USER,
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "So?"},
    ]
    items = [
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": json.dumps(ARGUMENTS)},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "So?"}]},
    ]
    tools = [{"type": "function", "function": {"name": "now"}}]
    with scripted_client(tool_vocabularies["hermes"], "It will.", "<|im_end|>") as (client, loaded):
        seen: list[list[int]] = []
        prefill = loaded.pair.prefill

        def seen_first(ids: Sequence[int], *rest: Any) -> int:
            seen.append(list(ids))
            return prefill(ids, *rest)

        loaded.pair.prefill = seen_first  # type: ignore[method-assign,assignment]
        client.post(CHAT, {"messages": theirs, "tools": tools, "max_tokens": 9, "temperature": 0})
        answer = client.post(RESPONSES, asked(input=items, tools=TOOLS[1:])).json()
        assert answer["output"][0]["content"][0]["text"] == "It will."
        assert seen[0] == seen[1]


def test_instructions_and_what_the_developer_says_first_are_one_message(client: Any) -> None:
    items = [{"role": "developer", "content": "One."}, {"role": "system", "content": "Two."}, USER]
    chat = {"messages": [{"role": "system", "content": "Zero.\n\nOne.\n\nTwo."}, USER], "count": True}
    size = client.post("/apply-template", chat).json()["tokens"]
    usage = client.post(RESPONSES, asked(instructions="Zero.", input=items, max_output_tokens=1)).json()["usage"]
    assert usage["input_tokens"] == size
    assert client.post(RESPONSES, asked(input=items[:1], max_output_tokens=1)).status_code == 200


def test_an_answer_in_a_form(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "x", "strict": True, "schema": schema}
    response = told(client, asked(max_output_tokens=300, text={"format": form}))
    assert set(json.loads(response["output"][0]["content"][0]["text"])) == {"ok"}
    response = told(client, asked(max_output_tokens=300, text={"format": {"type": "json_object"}}))
    assert response["text"] == {"format": {"type": "json_object"}}


@contextmanager
def official_client(app: Any) -> Iterator[openai.OpenAI]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        serving(app, listener),
        openai.OpenAI(
            api_key="none", base_url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1", max_retries=0
        ) as official,
    ):
        yield official


def test_the_official_client(client: Any) -> None:
    with official_client(client.app) as official:
        whole = official.responses.create(model="embedded", input="Hello", temperature=0, max_output_tokens=16)
        assert len(whole.output_text) > 5
        with official.responses.stream(model="embedded", input="Hello", temperature=0, max_output_tokens=16) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == whole.output_text
        with pytest.raises(openai.BadRequestError) as caught:
            official.responses.create(model="embedded", input="Hello", previous_response_id=whole.id)
        assert caught.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError):
            official.responses.retrieve(whole.id)


@pytest.mark.parametrize("family", sorted(CALLS))
def test_the_official_client_calls_a_tool(tool_vocabularies: dict[str, Path], family: str) -> None:
    """Its streaming helper puts the response together, and its items go back as they are."""
    with (
        scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _),
        official_client(client.app) as official,
    ):
        items: Any = [USER]
        with official.responses.stream(model="localdflash", input=items, tools=TOOLS, temperature=0) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_response()
        assert {"response.function_call_arguments.delta", "response.completed"} <= kinds
        call = final.output[-1]
        assert call.type == "function_call"
        assert json.loads(call.arguments) == ARGUMENTS
        items += [item.model_dump(exclude_none=True) for item in final.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
        again = official.responses.create(model="localdflash", input=items, tools=TOOLS, temperature=0)
        assert again.output[-1].type == "function_call"


def test_an_error_in_the_middle_is_the_last_event(client: Any, monkeypatch: pytest.MonkeyPatch, worker: Any) -> None:
    from localdflash.base.errors import LocaldflashError

    step, calls = worker.loaded.pair.step, 0

    def breaking(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise LocaldflashError("it broke")
        return step(*arguments)

    monkeypatch.setattr(worker.loaded.pair, "step", breaking)
    last = events_of(client, asked(temperature=3.0, seed=1))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "it broke"}
