"""Anthropic's own client, over TCP and through the guard; where it is installed, for nothing here needs it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from localdflash.server.guard import Guard
from tests.server.api.test_tools import ARGUMENTS, CALLS, ENDS, SCHEMA
from tests.support.chat_formats import tool_vocabularies
from tests.support.scripted_pair import scripted_client
from tests.support.served import KEY, serving
from tests.text.conftest import make_vocabulary, oracle

__all__ = ["make_vocabulary", "oracle", "tool_vocabularies"]

anthropic: Any = pytest.importorskip("anthropic")

USER = {"role": "user", "content": "Write a function that adds two numbers."}
TOOLS = [{"name": "weather", "description": "What it is like", "input_schema": SCHEMA}]


@contextmanager
def official_client(app: Any, **key: str) -> Iterator[Any]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        serving(Guard(app, key=KEY), listener),
        anthropic.Anthropic(
            base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", max_retries=0, **(key or {"api_key": KEY})
        ) as client,
    ):
        yield client


def test_messages_whole_and_streamed(app: Any) -> None:
    asked: Any = {"model": "localdflash", "max_tokens": 24, "messages": [USER], "extra_body": {"temperature": 0}}
    kinds = TypeAdapter(anthropic.types.RawMessageStreamEvent)
    with official_client(app) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            text, final = "".join(stream.text_stream), stream.get_final_message()
        assert text == whole.content[0].text == final.content[0].text
        assert whole.stop_reason == final.stop_reason == "max_tokens"
        for event in client.messages.create(**asked, stream=True):
            kinds.validate_python(event.model_dump())
        counted = client.messages.count_tokens(model="localdflash", messages=[USER]).input_tokens
        assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    with official_client(app, auth_token=KEY) as client:
        assert client.messages.create(**asked).content == whole.content


def test_errors_are_the_clients_own(app: Any) -> None:
    asked: Any = {"model": "localdflash", "max_tokens": 2, "messages": [USER]}
    with official_client(app) as client:
        with pytest.raises(anthropic.NotFoundError, match="did you mean"):
            client.messages.create(**{**asked, "model": "embeded"})
        with pytest.raises(anthropic.BadRequestError, match="shorten it"):
            client.messages.create(**{**asked, "messages": [{"role": "user", "content": "word " * 3000}]})
    with official_client(app, api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(**asked)


@pytest.mark.parametrize("family", sorted(CALLS))
def test_a_tool_is_called_and_its_result_goes_back(tool_vocabularies: dict[str, Path], family: str) -> None:
    asked: Any = {"model": "localdflash", "max_tokens": 300, "tools": TOOLS, "extra_body": {"temperature": 0}}
    with (
        scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _),
        official_client(client.app) as official,
    ):
        messages: list[Any] = [USER]
        thinking = {"type": "enabled", "budget_tokens": 1024}
        with official.messages.stream(**asked, messages=messages, thinking=thinking) as stream:
            message = stream.get_final_message()
        call = message.content[-1]
        assert (message.stop_reason, call.type, call.input) == ("tool_use", "tool_use", ARGUMENTS)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        messages += [
            {"role": "assistant", "content": [block.model_dump() for block in message.content]},
            {"role": "user", "content": [result]},
        ]
        assert official.messages.create(**asked, messages=messages).stop_reason == "tool_use"
