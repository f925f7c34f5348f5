"""Requests to each kind of server, and events from its texts, which end where our engine would end them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import LocaldflashError
from localdflash.lsp.engine_completer import Event
from localdflash.lsp.remote.remote_completer import find_server
from localdflash.lsp.remote.remote_prompt import RemotePrompt
from localdflash.lsp.remote.remote_source import CompletionPart, Fields, RemoteSource, sampling_of
from localdflash.server.address import Address
from tests.lsp.remote.made_up import (
    BODY,
    CODER,
    STREAM,
    Answer,
    Json,
    Said,
    completions,
    llama,
    ollama,
    serving,
    sse,
    vllm,
)

TEXT = "rn first + second\n\n\ndef other(third):\n    return third\n"
PROBE = Said({"choices": [], "usage": {"prompt_tokens": 3}})
OURS = f"<|fim_suffix|>{BODY['suffix']}<|fim_middle|>retu"


async def answered(answers: dict[str, Answer], **changes: Any) -> tuple[list[Event], list[Json]]:
    """The events of one completion, and the requests for it."""
    async with serving(answers) as server:
        with closing(await find_server(server.address, "")) as source:
            tried = len(server.bodies("/v1/completions"))
            events = [event async for event in source.complete({**BODY, **changes})]
            return events, server.bodies("/v1/completions")[tried:]


def text_of(events: Sequence[Event], index: int = 0) -> str:
    return "".join(event["text"] for event in events if event["index"] == index)


@pytest.mark.parametrize(
    ("answers", "model", "ours"),
    [
        (vllm("rn ", "first\n"), CODER, True),
        (llama("rn ", "first\n"), "/models/Qwen2.5-Coder-1.5B-Q8_0.gguf", True),
        (ollama("rn ", "first\n"), CODER, False),
        (completions("rn ", "first\n", models=("some",), markers=(), suffix="counted"), "some", False),
    ],
)
async def test_our_prompt_or_both_sides(answers: dict[str, Answer], model: str, ours: bool) -> None:
    events, (body,) = await answered(answers)
    assert text_of(events) == "rn first"
    assert body["prompt"].endswith(OURS if ours else BODY["middle"])
    assert body["prompt"].count("def sub(a, b):") == 1  # of the other file
    assert body.get("suffix") == (None if ours else BODY["suffix"])
    assert len(body.get("stop", ())) == (4 if ours else 0)
    assert (body["max_tokens"], body["model"], body["temperature"], "seed" in body) == (96, model, 0.0, False)


@pytest.mark.parametrize("answers", [vllm("rn", " first", logprob=-0.2), llama("rn", " first", logprob=-0.2)])
async def test_the_probability_of_each_token_is_used_if_it_is_reported(answers: dict[str, Answer]) -> None:
    events, _ = await answered(answers)
    assert events[-1]["tokens"] == 2
    assert events[0]["confidence"] == pytest.approx(2.718**-0.2, rel=1e-3)


async def test_a_text_ends_where_the_model_is_unsure() -> None:
    def parts(body: Json) -> Said:
        tokens = [("rn first", -0.1), (" -", -2.5), (" third", -4.0), ("\n", -0.1)]
        told = [{"tokens": [text], "token_logprobs": [logprob]} for text, logprob in tokens]
        choices = [{"text": text, "logprobs": one} for (text, _), one in zip(tokens, told, strict=True)]
        if body.get("stream"):
            return sse(*({"choices": [one]} for one in choices))
        return Said({"choices": choices[:1], "usage": {"prompt_tokens": 3}})

    answers = {**vllm(), "/v1/completions": parts}
    events, _ = await answered(answers, least_sure=0.25)
    assert text_of(events).startswith("rn first")
    assert "third" not in text_of(events)
    assert events[-1]["finish"] == "unsure"
    assert text_of((await answered(answers))[0]) == "rn first - third"


def test_further_texts_are_varied_and_the_penalty_has_the_names_of_both_servers() -> None:
    assert sampling_of({"count": 2}) == [{"temperature": 0.0}, {"temperature": 0.8, "seed": 1}]
    first, second = sampling_of({"count": 2, "temperature": 1.0, "seed": 7, "repetition_penalty": 1.3})
    assert first == {"temperature": 1.0, "seed": 7, "repetition_penalty": 1.3, "repeat_penalty": 1.3}
    assert second == {**first, "seed": 8}


async def test_a_request_without_tokens_reaches_no_server() -> None:
    assert await answered(vllm(), max_tokens=0) == ([], [])


class Scripted(RemoteSource):
    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(Address(), "scripted", (), RemotePrompt(None), logprobs=False)
        self.texts, self.sent = texts, 0

    async def choices(self, request: Fields) -> AsyncGenerator[CompletionPart]:
        for text in self.texts:
            self.sent += 1
            yield CompletionPart(text=text)


@given(st.lists(st.integers(0, 100), max_size=8))
def test_the_text_does_not_depend_on_its_pieces(places: list[int]) -> None:
    ends = [0, *sorted(place % (len(TEXT) + 1) for place in places), len(TEXT)]
    source = Scripted([TEXT[start:end] for start, end in pairwise(ends)])

    async def collect() -> list[Event]:
        return [event async for event in source.complete(BODY)]

    events = asyncio.run(collect())
    assert text_of(events) == "rn first + second"
    assert events[-1]["finish"] == "statement"


async def test_a_client_that_leaves_closes_the_connection() -> None:
    def hanging(body: Json) -> Said:
        part = b'data: {"choices":[{"text":"rn x + y"}]}\n\n'
        return Said(stream=[part], kind=STREAM, hangs=True) if body.get("stream") else PROBE

    async with serving({**vllm(), "/v1/completions": hanging}) as server:
        source = await find_server(server.address, "")
        tried = len(server.asked)
        waiting = asyncio.create_task(anext(source.complete(BODY)))
        while len(server.asked) == tried:
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait_for(server.left.wait(), 5)
        source.close()


@pytest.mark.parametrize(
    "stream",
    [
        sse({"error": {"message": "the slot is gone", "code": 500}}),
        Said(stream=[b"data: {nonsense\n\n"], kind=STREAM),
        Said({"choices": []}),
        Said({"error": {"message": "model runner has unexpectedly stopped"}}, 500),
    ],
)
async def test_an_error_within_an_answer_is_one_line(stream: Said) -> None:
    with pytest.raises(LocaldflashError, match=r"^.+$") as raised:
        await answered({**vllm(), "/v1/completions": lambda body: stream if body.get("stream") else PROBE})
    assert "\n" not in str(raised.value)
