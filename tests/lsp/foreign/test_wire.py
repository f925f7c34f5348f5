"""Requests to each kind of server, and the events of its answers; closing the stream stops it."""

import asyncio
import math
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError
from localdflash.lsp.engine_completer import CompletionSource
from localdflash.lsp.foreign.finding import find_server
from localdflash.lsp.foreign.llama_client import Probability, begins_with, logprob_of
from tests.lsp.foreign.made_up import (
    BODY,
    QWEN,
    STREAM,
    Answer,
    Said,
    lines,
    llama,
    llama_said,
    ollama,
    openai,
    serving,
    sse,
)

Json = dict[str, Any]


async def text_of(source: CompletionSource, **changes: Any) -> str:
    return "".join([event["text"] async for event in source.complete({**BODY, **changes})])


async def asked(answers: dict[str, Answer], path: str, **changes: Any) -> tuple[str, Json]:
    """The text of one completion, and the last thing that this path was sent."""
    async with serving(answers) as server:
        source = await find_server(server.address, "")
        text = await text_of(source, **changes)
        source.close()
        return text, server.bodies(path)[-1]


async def test_llama_server_gets_code_as_text_and_markers_as_ids() -> None:
    text, body = await asked(llama(llama_said("return"), llama_said(" first\n")), "/completion")
    assert text == "rn first"
    head, prefix, *others = body["prompt"]
    assert head == "# b.py\ndef sub(a, b):\n    return a - b\n"
    assert (prefix, others) == (3, [BODY["prefix"] + "    ", 4, BODY["suffix"], 5])  # "retu" is drawn again
    assert body["grammar"] == begins_with("retu")
    assert (body["n_predict"], body["temperature"], body["stream"]) == (96, 0.0, True)


def test_the_probability_of_a_healed_word_is_conditional() -> None:
    likeliest = [Probability(math.log(p), token) for token, p in (("x", 0.9), ("return", 0.06), ("ret", 0.02))]
    drawn = Probability(math.log(0.06), "return", likeliest)
    assert logprob_of(drawn, "retu") == pytest.approx(math.log(0.06 / 0.08))
    assert logprob_of(drawn, "") == pytest.approx(math.log(0.06))
    assert logprob_of(Probability(math.log(1e-6), "retu", likeliest[:1]), "retu") == pytest.approx(0.0)
    assert logprob_of(Probability(-3.4e38, "retu", likeliest[:1]), "retu") == pytest.approx(0.0)
    assert logprob_of(Probability(None, "return"), "retu") is None


PREFIX_END, OURS = BODY["middle"], f"<|fim_suffix|>{BODY['suffix']}<|fim_middle|>retu"
INSERT = {"template": "{{ .Prompt }}", "capabilities": ["insert"], "details": {}}


@pytest.mark.parametrize(
    ("answers", "path", "ours"),
    [
        (ollama({"response": "rn "}, {"response": "first\n"}), "/api/generate", True),
        (ollama({"response": "rn first\n"}, models={"x": INSERT}), "/api/generate", False),
        (openai("rn ", "first\n", models=("qwen2.5-coder",), suffix=False, markers=QWEN), "/v1/completions", True),
        (openai("rn ", "first\n"), "/v1/completions", False),
    ],
)
async def test_our_prompt_or_both_sides(answers: dict[str, Answer], path: str, ours: bool) -> None:
    text, body = await asked(answers, path)
    assert text == "rn first"
    assert body["prompt"].endswith(OURS if ours else PREFIX_END)
    assert body.get("suffix") == (None if ours else BODY["suffix"])
    if path == "/api/generate":
        assert (body.get("raw"), body["options"]["num_predict"]) == (ours or None, 96)
    else:
        assert (body["max_tokens"], body["model"], "seed" in body) == (
            96,
            "qwen2.5-coder" if ours else "some-model",
            False,
        )
        assert len(body.get("stop", ())) <= 4


async def test_openai_tells_how_sure_each_token_is() -> None:
    told = {"tokens": ["rn", " first"], "token_logprobs": [-0.1, -0.3], "top_logprobs": None}
    probe = {"choices": [{"text": "x", "logprobs": {"token_logprobs": [-1.0]}}], "usage": None}

    def complete(body: Json) -> Said:
        choice = {"text": "rn first", "logprobs": told, "finish_reason": "stop"}
        return sse({"choices": [choice]}) if body.get("stream") else Said(probe)

    async with serving(openai(completions=complete)) as server:
        source = await find_server(server.address, "")
        events = [event async for event in source.complete(BODY)]
        assert server.bodies("/v1/completions")[-1]["logprobs"] == 1
        assert events[-1]["tokens"] == 2
        assert [event for event in events if event["text"]][-1]["confidence"] == pytest.approx(2.718**-0.2, rel=1e-3)
        source.close()


def hanging(part: bytes, kind: str = STREAM) -> Said:
    return Said(stream=[part], kind=kind, hangs=True)


@pytest.mark.parametrize(
    ("answers", "path"),
    [(llama(completion=hanging(b'data: {"content":"return x\\n    y","tokens":[1]}\n\n')), "/completion")],
)
async def test_a_client_that_leaves_closes_the_connection(answers: dict[str, Answer], path: str) -> None:
    async with serving(answers) as server:
        source = await find_server(server.address, "")
        waiting = asyncio.create_task(text_of(source))
        while not server.bodies(path):
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait_for(server.left.wait(), 5)
        source.close()


@pytest.mark.parametrize(
    "answers",
    [
        llama(completion=sse({"error": {"message": "the slot is gone", "code": 500}})),
        llama(completion=Said(stream=[b"data: {nonsense\n\n"], kind=STREAM)),
        llama(completion=Said({"content": "x"})),
        ollama(generate=lines({"error": "model runner has unexpectedly stopped"})),
        ollama(generate=Said({"error": "no"}, 404)),
    ],
)
async def test_an_error_within_an_answer_is_one_line(answers: dict[str, Answer]) -> None:
    async with serving(answers) as server:
        source = await find_server(server.address, "")
        with pytest.raises(LocaldflashError, match=r"^.+$") as raised:
            await text_of(source)
        assert "\n" not in str(raised.value)
        source.close()
