"""Dialects of the API: each writes the same request and reads its answer into a `Reply`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.message_events import events_of, message_of

QUESTION = "Write a function that adds two numbers."
PROMPT = "def add(a, b):\n"
BEFORE, AFTER = "class Box:\n    def add(self, a, b):\n        ", "\n\nbox = Box()\n"
USER = {"role": "user", "content": QUESTION}
ABOUT = "What it is like"
PING = ": ping"
Json = dict[str, Any]
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@dataclass(frozen=True)
class Reply:
    """Answer in any dialect. `finish` is "stop", "length" or "calls"."""

    text: str
    finish: str
    thoughts: str = ""
    calls: Sequence[tuple[str, Any]] = ()  # names and arguments
    sizes: tuple[int, int] = (0, 0)  # tokens of the prompt and of the answer

    def settled(self) -> "Reply":
        """Return the fields that drafts do not change: token counts include drafted tokens after the end."""
        return replace(self, sizes=(self.sizes[0], 0))


@dataclass(frozen=True)
class Tools:
    """Tools of a request, by name, each with its schema. `must`: True, or the name of the one to call."""

    schemas: Json
    must: bool | str = False


def _openai_error(told: Json) -> str:
    assert list(told) == ["error"]
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in told["error"]["message"]
    return str(told["error"]["message"])


def _anthropic_error(told: Json) -> str:
    assert set(told) == {"type", "error"}
    assert (told["type"], set(told["error"])) == ("error", {"type", "message"})
    assert "\n" not in told["error"]["message"]
    return str(told["error"]["message"])


@dataclass(frozen=True, eq=False)
class Dialect:
    """`body` writes a request, `read` a whole answer, `add_up` the events of a stream, `error` the message of an
    error.
    """

    path: str
    base: Json
    read: Callable[[Json], Reply]
    add_up: Callable[[str], Reply]
    limit: str = "max_tokens"
    stop: str = "stop"
    error: Callable[[Json], str] = _openai_error
    tools: Callable[[Tools], Json] = lambda _: {}
    form: Callable[[Json], Json] = lambda schema: {"json_schema": schema}
    error_event: Callable[[Json], str] = field(default=lambda event: str(event["error"]["message"]))

    def body(
        self,
        *,
        max_tokens: int = 32,
        stop: Sequence[str] = (),
        schema: Json | None = None,
        tools: Tools | None = None,
        **more: Any,
    ) -> Json:
        """Return a request body, greedy by default."""
        body = {**self.base, self.limit: max_tokens, "temperature": 0}
        body |= {self.stop: list(stop)} if stop else {}
        body |= self.form(schema) if schema else {}
        body |= self.tools(tools) if tools else {}
        return body | more

    def ask(self, client: Any, **request: Any) -> Reply:
        response = client.post(self.path, self.body(**request))
        assert response.status_code == 200, response.text
        return self.read(response.json())

    def stream(self, client: Any, **request: Any) -> Reply:
        response = client.post(self.path, self.body(**request, stream=True))
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return self.add_up(response.text)

    def both(self, client: Any, **request: Any) -> Reply:
        """Return the answer; check that the stream gives the same."""
        whole, streamed = self.ask(client, **request), self.stream(client, **request)
        assert streamed.settled() == whole.settled(), (streamed, whole)
        return whole


def openai_events(text: str) -> list[Json]:
    events, done, rest = text.rpartition("data: [DONE]\n\n")
    assert (done, rest) == ("data: [DONE]\n\n", "")
    return plain_events(events)


def plain_events(text: str) -> list[Json]:
    *events, rest = text.split("\n\n")
    assert rest == ""
    return [json.loads(event.removeprefix("data: ")) for event in events if event != PING]


def _function(name: str, **fields: Any) -> Json:
    """Return a function in the format of OpenAI's chat."""
    return {"type": "function", "function": {"name": name, **fields}}


def _of_tools(tools: Tools, entry: Callable[[str, Json], Json], named: Callable[[str], Json], must: Any) -> Json:
    choice = named(tools.must) if isinstance(tools.must, str) else must if tools.must else None
    return {"tools": [entry(name, schema) for name, schema in tools.schemas.items()]} | (
        {"tool_choice": choice} if choice else {}
    )


def _arguments(text: str) -> Any:
    """Arguments of a call; those that were cut as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# OpenAI's chat


def _chat_calls(calls: Sequence[Json]) -> list[tuple[str, Any]]:
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    return [(call["function"]["name"], _arguments(call["function"]["arguments"])) for call in calls]


def _chat(choice: Json, message: Json, usage: Json) -> Reply:
    finish = "calls" if choice["finish_reason"] == "tool_calls" else str(choice["finish_reason"])
    calls = _chat_calls(message.get("tool_calls", []))
    sizes = usage["prompt_tokens"], usage["completion_tokens"]
    return Reply(message["content"] or "", finish, message.get("reasoning_content", ""), calls, sizes)


def _read_chat(told: Json) -> Reply:
    (choice,) = told["choices"]
    return _chat(choice, choice["message"], told["usage"])


def _add_up_chat(text: str) -> Reply:
    *events, usage = openai_events(text)
    message: Json = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in (event["choices"][0]["delta"] for event in events):
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name, "")
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append(call)
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return _chat(events[-1]["choices"][0], message, usage["usage"])


def _chat_tools(tools: Tools) -> Json:
    return _of_tools(
        tools, lambda name, schema: _function(name, description=ABOUT, parameters=schema), _function, "required"
    )


# Anthropic's messages


def _read_message(told: Json) -> Reply:
    assert told["id"].startswith("msg_")
    blocks = [*told["content"]]
    ended = told["stop_reason"]
    finish = {"max_tokens": "length", "tool_use": "calls", "end_turn": "stop", "stop_sequence": "stop"}[ended]
    assert (ended == "stop_sequence") == (told["stop_sequence"] is not None)
    usage = told["usage"]
    return Reply(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        finish,
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]),
    )


def _message_tools(tools: Tools) -> Json:
    return _of_tools(
        tools,
        lambda name, schema: {"name": name, "description": ABOUT, "input_schema": schema},
        lambda name: {"type": "tool", "name": name},
        {"type": "any"},
    )


# OpenAI's responses


def _read_response(told: Json) -> Reply:
    Response.model_validate(told)
    assert told["id"].startswith("resp_")
    items = told["output"]
    assert told["status"] == ("incomplete" if told["incomplete_details"] else "completed")
    assert all(item["status"] == "completed" for item in items[:-1])
    assert not items or items[-1]["status"] == told["status"]
    calls = [(item["name"], _arguments(item["arguments"])) for item in items if item["type"] == "function_call"]
    return Reply(
        "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        "length" if told["incomplete_details"] else "calls" if calls else "stop",
        "".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["content"]),
        calls,
        (told["usage"]["input_tokens"], told["usage"]["output_tokens"]),
    )


def response_events(text: str) -> list[Json]:
    """Parse a stream; check names, numbers and the official client's types."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    events = list[Json]()
    for number, block in enumerate(block for block in blocks if block != PING):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        _EVENT.validate_python(event)
        events.append(event)
    return events


def _add_up_response(text: str) -> Reply:
    created, started, *middle, last = response_events(text)
    assert (created["type"], started["type"]) == ("response.created", "response.in_progress")
    assert last["type"] == f"response.{last['response']['status']}"
    assert _output(middle) == last["response"]["output"]
    return _read_response(last["response"])


def _output(events: Sequence[Json]) -> list[Json]:
    """Assemble the output from the deltas."""
    output = list[Json]()
    for event in events:
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


def _response_tools(tools: Tools) -> Json:
    return _of_tools(
        tools,
        lambda name, schema: {"type": "function", "name": name, "description": ABOUT, "parameters": schema},
        lambda name: {"type": "function", "name": name},
        "required",
    )


# Completions: OpenAI's, and llama-server's two


def _read_completion(told: Json) -> Reply:
    (choice,), usage = told["choices"], told["usage"]
    return Reply(choice["text"], choice["finish_reason"], sizes=(usage["prompt_tokens"], usage["completion_tokens"]))


def _add_up_completion(text: str) -> Reply:
    *events, usage = openai_events(text)
    choice = {**events[-1]["choices"][0], "text": "".join(event["choices"][0]["text"] for event in events)}
    return _read_completion({**usage, "choices": [choice]})


def _read_llama(told: Json) -> Reply:
    finish = {"limit": "length"}.get(told["stop_type"], "stop")
    return Reply(told["content"], finish, sizes=(told["tokens_evaluated"], told["tokens_predicted"]))


def _add_up_llama(text: str) -> Reply:
    events = plain_events(text)
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    return _read_llama({**events[-1], "content": "".join(event["content"] for event in events)})


_USAGE = {"stream_options": {"include_usage": True}}
CHAT = Dialect(
    *("/v1/chat/completions", {"messages": [USER], **_USAGE}, _read_chat, _add_up_chat),
    tools=_chat_tools,
    form=lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
)
MESSAGES = Dialect(
    *("/v1/messages", {"messages": [USER]}, _read_message, lambda text: _read_message(message_of(events_of(text)))),
    stop="stop_sequences",
    error=_anthropic_error,
    tools=_message_tools,
    form=lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
)
RESPONSES = Dialect(
    *("/v1/responses", {"input": QUESTION}, _read_response, _add_up_response, "max_output_tokens", ""),
    tools=_response_tools,
    form=lambda schema: {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
    error_event=lambda event: str(event["response"]["error"]["message"]),
)
COMPLETIONS = Dialect("/v1/completions", {"prompt": PROMPT, **_USAGE}, _read_completion, _add_up_completion)
RAW = Dialect("/completion", {"prompt": PROMPT}, _read_llama, _add_up_llama, "n_predict")
INFILL = Dialect("/infill", {"input_prefix": BEFORE, "input_suffix": AFTER}, _read_llama, _add_up_llama, "n_predict")
CHATS, COMPLETING = (CHAT, MESSAGES, RESPONSES), (COMPLETIONS, RAW, INFILL)
DIALECTS = (*CHATS, *COMPLETING)
