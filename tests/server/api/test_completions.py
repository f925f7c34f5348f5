from typing import Any

import pytest

from localdflash.engine.generate import generate
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.completion import complete, prepare_text

COMPLETIONS = "/v1/completions"
PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(part["text"] for event in events for part in event["choices"] if part["index"] == index)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_middle_is_that_of_the_command_line(client: Any, plain: LoadedPair, seed: int | None) -> None:
    params = SamplingParams() if seed is None else SamplingParams(0.8, seed=seed)
    text = "".join(complete(plain, PREFIX, SUFFIX, 32, params))
    body = {"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 32, "temperature": params.temperature, "seed": seed}
    told = client.post(COMPLETIONS, body).json()
    assert told["choices"][0]["text"] == text
    assert text_of(client.events(COMPLETIONS, body)) == text
    assert told["object"] == "text_completion"
    assert told["id"].startswith("cmpl-")
    assert set(told["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}


def test_the_middle_is_greedy_unless_asked(client: Any) -> None:
    bodies = ({"prompt": PREFIX, "suffix": SUFFIX}, {"prompt": PREFIX, "suffix": SUFFIX, "temperature": 0})
    assert len({client.post(COMPLETIONS, body).json()["choices"][0]["text"] for body in bodies}) == 1


def test_a_prompt_goes_on(client: Any, plain: LoadedPair) -> None:
    request = prepare_text(plain, PREFIX, 24, SamplingParams()).request
    ids = [token for step in generate(plain.pair, request) for token in step.tokens if token not in request.ends]
    text = plain.tokenizer.spell(ids).decode()
    body = {"prompt": PREFIX, "max_tokens": 24, "temperature": 0}
    assert client.post(COMPLETIONS, body).json()["choices"][0]["text"] == text
    tokens = client.post("/tokenize", {"content": PREFIX}).json()["tokens"]
    assert client.post(COMPLETIONS, {**body, "prompt": tokens}).json()["choices"][0]["text"] == text
    assert client.post(COMPLETIONS, {**body, "prompt": [PREFIX]}).json()["choices"][0]["text"] == text


def test_sixteen_tokens_unless_asked(client: Any) -> None:
    assert client.post(COMPLETIONS, {"prompt": PREFIX, "seed": 4}).json()["usage"]["completion_tokens"] <= 16


def test_several_prompts(client: Any) -> None:
    body = {"max_tokens": 6, "temperature": 1.2, "seed": 3, "n": 2}
    told = client.post(COMPLETIONS, {**body, "prompt": ["import ", "class A"]}).json()
    alone = [client.post(COMPLETIONS, {**body, "prompt": prompt}).json() for prompt in ("import ", "class A")]
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in told["choices"]] == [c["text"] for one in alone for c in one["choices"]]
    assert told["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)


def test_log_probabilities(client: Any) -> None:
    body = {"prompt": PREFIX, "max_tokens": 12, "temperature": 0, "logprobs": 2}
    choice = client.post(COMPLETIONS, body).json()["choices"][0]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    assert [
        choice["text"][offset:].startswith(token)
        for token, offset in zip(told["tokens"], told["text_offset"], strict=True)
    ]
    assert told["text_offset"] == [len("".join(told["tokens"][:i])) for i in range(len(told["tokens"]))]
    assert [max(top, key=lambda token: top[token]) for top in told["top_logprobs"]] == told["tokens"]
    assert [top[token] for top, token in zip(told["top_logprobs"], told["tokens"], strict=True)] == told[
        "token_logprobs"
    ]
    events = client.events(COMPLETIONS, body)
    for name, values in told.items():
        assert [v for e in events for part in e["choices"] for v in part["logprobs"][name]] == values


def test_a_stop_string_that_spells_a_marker_is_the_marker(client: Any, plain: LoadedPair) -> None:
    """Zed and others send the markers of the format as stop strings; markers have no text to be found in."""
    tokens = [plain.tokenizer.special("<|im_start|>"), *plain.tokenizer.encode("user\nHello")]
    body = {"prompt": tokens, "max_tokens": 60, "temperature": 0}
    unstopped = client.post(COMPLETIONS, body).json()["choices"][0]
    assert unstopped["finish_reason"] in ("stop", "length")
    grammar = 'root ::= "x"'
    stopped = client.post(COMPLETIONS, {**body, "grammar": grammar, "stop": ["<|fim_prefix|>"]}).json()["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == ("x", "stop")


@pytest.mark.parametrize(
    "prompt",
    [
        f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>",
        f"<|fim_suffix|>{SUFFIX}<|fim_prefix|>{PREFIX}<|fim_middle|>",
    ],
)
def test_a_prompt_with_markers_is_put_in_the_models_order(client: Any, plain: LoadedPair, prompt: str) -> None:
    text = "".join(complete(plain, PREFIX, SUFFIX, 24, SamplingParams()))
    told = client.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 24, "temperature": 0}).json()
    assert told["choices"][0]["text"] == text
