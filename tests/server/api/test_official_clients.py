"""OpenAI's and Anthropic's own clients, over TCP and through the guard, tool calls put together by their helpers."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from localdflash.server.guard import Guard
from tests.server.api.dialects import CHAT, MESSAGES, RESPONSES, USER
from tests.server.api.test_tools import ARGUMENTS, CALLS, ENDS, TOOLS
from tests.support.scripted_pair import scripted_client
from tests.support.served import KEY, serving

OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC = (
    one.body(tools=TOOLS, max_tokens=300)["tools"] for one in (CHAT, RESPONSES, MESSAGES)
)
ASKED: Any = [USER]


@contextmanager
def served(app: Any) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener, serving(Guard(app, key=KEY), listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def client(live: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=live.key, base_url=f"http://127.0.0.1:{live.port}/v1", max_retries=0) as client:
        yield client


def test_openais_chat(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    whole = create(model="embedded", messages=ASKED, temperature=0, max_tokens=16, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    assert text
    assert whole.choices[0].logprobs
    assert len(whole.choices[0].logprobs.content or ()) == 16
    chunks = create(
        model="embedded",
        messages=ASKED,
        temperature=0,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    *parts, last = chunks
    assert "".join(choice.delta.content or "" for chunk in parts for choice in chunk.choices) == text
    assert last.usage
    assert last.usage.completion_tokens == 16
    told = client.completions.create(model="embedded", prompt="def add(a, b):\n", max_tokens=4, logprobs=1, n=2)
    for choice in told.choices:
        assert choice.logprobs
        assert "".join(choice.logprobs.tokens or ()) == choice.text
    assert [model.id for model in client.models.list()] == ["embedded"]
    with pytest.raises(openai.NotFoundError, match="did you mean"):
        create(model="embeded", messages=ASKED)
    grammar = {"grammar": 'root ::= "yes" | "no"'}
    with client.chat.completions.stream(model="embedded", messages=ASKED, extra_body=grammar) as stream:
        assert {"chunk", "content.delta", "content.done"} <= {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.content in ("yes", "no")


def test_openais_helpers_put_a_call_together_and_it_goes_back(tool_vocabularies: dict[str, Path]) -> None:
    with (
        scripted_client(tool_vocabularies["harmony"], *CALLS["harmony"], ENDS["harmony"]) as (client, _),
        served(client.app) as url,
        openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as official,
    ):
        common: Any = {"model": "localdflash", "temperature": 0}
        with official.chat.completions.stream(**common, messages=ASKED, tools=OPENAI_CHAT) as stream:
            assert "tool_calls.function.arguments.done" in {event.type for event in stream}
            message = stream.get_final_completion().choices[0].message
        assert message.tool_calls
        (call,) = message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", ARGUMENTS)
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        messages = [*ASKED, message.model_dump(exclude_none=True), result]
        again = official.chat.completions.create(**common, messages=messages, tools=OPENAI_CHAT)
        assert again.choices[0].message.tool_calls
        with official.responses.stream(**common, input=ASKED, tools=OPENAI_RESPONSES) as events:
            kinds = {event.type for event in events}
            final = events.get_final_response()
        assert {"response.function_call_arguments.delta", "response.completed"} <= kinds
        item: Any = final.output[-1]
        assert json.loads(item.arguments) == ARGUMENTS
        items: list[Any] = [*ASKED, *(one.model_dump(exclude_none=True) for one in final.output)]
        items.append({"type": "function_call_output", "call_id": item.call_id, "output": "rain"})
        more = official.responses.create(**common, input=items, tools=OPENAI_RESPONSES)
        assert more.output[-1].type == "function_call"
