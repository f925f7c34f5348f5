"""The official client, over TCP and through the guard."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "Write a function that adds two numbers."}]


@pytest.fixture
def client(live: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=live.key, base_url=f"http://127.0.0.1:{live.port}/v1", max_retries=0) as client:
        yield client


def test_chat_and_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="embedded", messages=MESSAGES, temperature=0, max_tokens=32)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage
    assert whole.usage.completion_tokens == 32
    chunks = list(
        client.chat.completions.create(
            model="embedded",
            messages=MESSAGES,
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == text
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_streaming_helper(client: openai.OpenAI) -> None:
    grammar = {"grammar": 'root ::= "yes" | "no"'}
    with client.chat.completions.stream(model="embedded", messages=MESSAGES, extra_body=grammar) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert answer.choices[0].message.content in ("yes", "no")


def test_log_probabilities(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(
        model="embedded", messages=MESSAGES, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2
    )
    logprobs = told.choices[0].logprobs
    assert logprobs
    assert logprobs.content
    assert len(logprobs.content) == 8
    assert [len(token.top_logprobs) for token in logprobs.content] == [2] * 8


def test_json_of_a_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    told = client.chat.completions.create(
        model="embedded",
        messages=MESSAGES,
        temperature=0,
        max_tokens=300,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
    )
    assert told.choices[0].message.content
    assert set(json.loads(told.choices[0].message.content)) == {"ok"}


def test_completions(client: openai.OpenAI) -> None:
    told = client.completions.create(
        model="embedded", prompt="def add(a, b):\n    return ", suffix="\n", max_tokens=8, logprobs=1, n=2
    )
    assert len(told.choices) == 2
    assert told.choices[0].logprobs
    assert told.choices[0].logprobs.tokens
    parts = client.completions.create(model="embedded", prompt="import ", max_tokens=8, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts if part.choices)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["embedded"]
    assert client.models.retrieve("embedded").owned_by == "localdflash"


def test_errors_are_the_clients_own(client: openai.OpenAI, live: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="did you mean"):
        client.chat.completions.create(model="embeded", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="embedded", messages=[{"role": "user", "content": "word " * 3000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="embedded", messages=MESSAGES, presence_penalty=3)
    assert caught.value.param == "presence_penalty"
    wrong = openai.OpenAI(api_key="wrong", base_url=str(client.base_url), max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()


def test_asynchronously(live: Any) -> None:
    async def ask() -> list[str]:
        base = f"http://127.0.0.1:{live.port}/v1"
        async with openai.AsyncOpenAI(api_key=live.key, base_url=base, max_retries=0) as client:
            create = client.chat.completions.create
            answers = await asyncio.gather(
                *(create(model="embedded", messages=MESSAGES, max_tokens=8, temperature=0) for _ in range(3))
            )
            return [answer.choices[0].message.content or "" for answer in answers]

    assert len(set(asyncio.run(ask()))) == 1
