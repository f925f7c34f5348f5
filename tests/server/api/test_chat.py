import json
import math
from dataclasses import replace
from typing import Any

import pytest

from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.answer import Answer
from localdflash.server.answers.conversation import prepare
from localdflash.server.answers.repetition import LEAST
from localdflash.text.chat_template import TemplateMessage

CHAT = "/v1/chat/completions"
QUESTION = "Write a function that adds two numbers."
SEEDS = [None, 1, 7]


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 48, **fields}


def sampled(seed: int | None) -> dict[str, Any]:
    return {} if seed is None else {"temperature": 0.9, "seed": seed, "top_p": 0.95}


def offline(plain: LoadedPair, limit: int, params: SamplingParams, *stops: str) -> tuple[str, str]:
    """The text, and how it ended, of plain decoding in this process."""
    prepared = prepare(plain, [TemplateMessage("user", QUESTION)], limit, params)
    answer = Answer(plain, replace(prepared, stops=stops))
    return "".join(answer), answer.request.finish_reason


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    parts = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(part["delta"].get("content", "") for part in parts)


@pytest.mark.parametrize("seed", SEEDS)
def test_streamed_and_whole_and_offline_are_the_same(client: Any, plain: LoadedPair, seed: int | None) -> None:
    params = SamplingParams() if seed is None else SamplingParams(0.9, top_p=0.95, seed=seed)
    text, _ = offline(plain, 48, params)
    assert len(text) > 20
    body = asked(**sampled(seed))
    assert client.post(CHAT, body).json()["choices"][0]["message"]["content"] == text
    assert text_of(client.events(CHAT, body)) == text


def test_the_shape_of_an_answer(client: Any) -> None:
    told = client.post(CHAT, asked()).json()
    assert set(told) == {"id", "object", "created", "model", "choices", "usage", "timings"}
    assert told["id"].startswith("chatcmpl-")
    assert told["object"] == "chat.completion"
    (choice,) = told["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    assert choice["message"]["role"] == "assistant"


def test_usage_adds_up(client: Any) -> None:
    tokens = len(
        client.post("/tokenize", {"content": client.post("/apply-template", asked()).json()["prompt"]}).json()["tokens"]
    )
    for repetition in range(2):
        told = client.post(CHAT, asked(max_tokens=9)).json()
        usage, timings = told["usage"], told["timings"]
        assert usage["prompt_tokens"] == tokens
        assert usage["completion_tokens"] == timings["predicted_n"] == 9
        assert usage["total_tokens"] == tokens + 9
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached == timings["cache_n"] == tokens - timings["prompt_n"]
        if repetition:
            assert cached == tokens - 1


def test_what_the_second_choice_reuses_was_not_cached_before(client: Any) -> None:
    new = {"messages": [{"role": "user", "content": "# nobody asked this before\n" * 8}], "max_tokens": 2, "n": 2}
    usage = client.post(CHAT, new).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"] / 2


def test_timings_tell_of_drafts(client: Any) -> None:
    timings = client.post(CHAT, asked(max_tokens=80)).json()["timings"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert timings["tau"] == pytest.approx(timings["predicted_n"] / timings["steps"], abs=1e-3)
    assert sum(timings["steps_by_drafter"].values()) == timings["steps"]
    assert all(0 <= share <= 1 for share in timings["accept_by_slot"])
    assert timings["predicted_per_second"] == pytest.approx(
        1e3 * timings["predicted_n"] / timings["predicted_ms"], rel=1e-3
    )


def test_the_chunks_of_a_stream(client: Any) -> None:
    first, *parts, last = client.events(CHAT, asked(max_tokens=8))
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    for part in parts:
        assert part["choices"][0]["finish_reason"] is None
        assert set(part["choices"][0]["delta"]) == {"content"}
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["delta"] == {}
    assert {event["object"] for event in (first, *parts, last)} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in (first, *parts, last)}) == 1
    assert all("usage" not in event for event in (first, *parts, last))


def test_a_stream_with_usage(client: Any) -> None:
    *others, last = client.events(CHAT, asked(max_tokens=8, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert all(event["usage"] is None for event in others)


def test_how_each_token_came(client: Any) -> None:
    events = client.events(CHAT, asked(max_tokens=60, steps=True))
    steps = [event["step"] for event in events if "step" in event]
    assert {"drafter", "drafted", "accepted", "tokens", "sizes", "ms"} == set(steps[0])
    assert "".join(token for step in steps for token in step["tokens"]) == text_of(events)
    assert sum(step["accepted"] for step in steps) == events[-1]["timings"]["draft_n_accepted"] > 0
    assert all(step["accepted"] <= step["drafted"] and step["accepted"] <= len(step["tokens"]) for step in steps)


def test_choices_have_seeds_of_their_own(client: Any) -> None:
    body = asked(max_tokens=16, temperature=1.5)
    whole = client.post(CHAT, {**body, "n": 3, "seed": 5}).json()
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    alone = [client.post(CHAT, {**body, "seed": 5 + i}).json()["choices"][0]["message"]["content"] for i in range(3)]
    assert texts == alone
    assert len(set(texts)) == 3
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 48
    events = client.events(CHAT, {**body, "n": 3, "seed": 5})
    assert [text_of(events, index) for index in range(3)] == texts


def test_a_client_that_says_nothing_gets_samples(client: Any) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24}
    texts = {client.post(CHAT, {**body, "top_k": 50}).json()["choices"][0]["message"]["content"] for _ in range(4)}
    assert len(texts) > 1


def test_an_answer_without_a_limit_ends_with_the_context(client: Any) -> None:
    told = client.post(CHAT, {**asked(seed=1, temperature=2.0), "max_tokens": None, "messages": [
        {"role": "user", "content": "word " * 480}]}).json()  # fmt: skip
    usage = told["usage"]
    assert told["choices"][0]["finish_reason"] == "stop" or usage["total_tokens"] == 1024
    more = client.post(CHAT, asked(max_tokens=100_000, temperature=0)).json()
    assert more["usage"]["total_tokens"] <= 1024


@pytest.mark.parametrize("names", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_names_of_the_limit(client: Any, names: str) -> None:
    told = client.post(CHAT, {**asked(max_tokens=None), names: 5}).json()
    assert told["usage"]["completion_tokens"] == 5


def test_nothing_but_the_cache(client: Any) -> None:
    told = client.post(CHAT, asked(max_tokens=0)).json()
    assert told["choices"][0]["message"]["content"] == ""
    assert told["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_stop_strings(client: Any, plain: LoadedPair, seed: int | None) -> None:
    params = SamplingParams() if seed is None else SamplingParams(0.9, top_p=0.95, seed=seed)
    whole, _ = offline(plain, 48, params)
    stop = whole[12:15]
    text, finish = offline(plain, 48, params, stop)
    assert text == whole.partition(stop)[0]
    assert finish == "stop"
    for body in (asked(stop=stop), asked(stop=[stop, "never this"])):
        choice = client.post(CHAT, {**body, **sampled(seed)}).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        events = client.events(CHAT, {**body, **sampled(seed)})
        assert text_of(events) == text
        assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_roles_and_parts(client: Any) -> None:
    def prompt(*messages: dict[str, Any]) -> str:
        return str(client.post("/apply-template", {"messages": list(messages)}).json()["prompt"])

    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert prompt({"role": "user", "content": parts}) == prompt({"role": "user", "content": "Hello"})
    assert prompt({"role": "developer", "content": "x"}) == prompt({"role": "system", "content": "x"})
    assert "user\n<tool_response>\nresult\n" in prompt({"role": "tool", "content": "result", "tool_call_id": "1"})
    assert "assistant\n<|im_end|>" in prompt({"role": "assistant", "content": None})


def test_what_a_user_writes_makes_no_turns(client: Any) -> None:
    def tokens(text: str) -> int:
        told = client.post(CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 1}).json()
        return int(told["usage"]["prompt_tokens"])

    assert tokens("<|im_end|>") > tokens("x") + 4


# Log probabilities


def test_log_probabilities(client: Any) -> None:
    choice = client.post(CHAT, asked(logprobs=True, top_logprobs=3)).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in content).decode() == choice["message"]["content"]
    for one in content:
        assert one["logprob"] <= 0
        assert [one["token"], one["logprob"]] == [one["top_logprobs"][0]["token"], one["top_logprobs"][0]["logprob"]]
        assert len(one["top_logprobs"]) == 3
        assert sum(math.exp(other["logprob"]) for other in one["top_logprobs"]) <= 1 + 1e-9
    streamed = client.events(CHAT, asked(logprobs=True, top_logprobs=3))
    found = [
        one for event in streamed for part in event["choices"] for one in (part["logprobs"] or {}).get("content", [])
    ]
    assert found == content


def test_log_probabilities_change_no_text(client: Any) -> None:
    for seed in SEEDS:
        bodies = (asked(**sampled(seed)), asked(**sampled(seed), logprobs=True))
        first, second = (client.post(CHAT, body).json()["choices"][0] for body in bodies)
        assert first["message"] == second["message"]
        assert second["logprobs"]["content"][0]["top_logprobs"] == []


def test_log_probabilities_end_where_the_text_does(client: Any) -> None:
    whole = client.post(CHAT, asked()).json()["choices"][0]["message"]["content"]
    body = asked(logprobs=True, stop=whole[12:15])
    choice = client.post(CHAT, body).json()["choices"][0]
    text, content = choice["message"]["content"], choice["logprobs"]["content"]
    spelled = b"".join(bytes(one["bytes"]) for one in content)
    assert spelled.startswith(text.encode())
    assert not spelled[: -len(content[-1]["bytes"])].startswith(text.encode())
    streamed = client.events(CHAT, body)
    found = [
        one for event in streamed for part in event["choices"] for one in (part["logprobs"] or {}).get("content", [])
    ]
    assert found == content


# Grammars

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_json_of_a_schema_with_drafts_and_without(client: Any, plain: LoadedPair, seed: int | None) -> None:
    from localdflash.text.grammar import Grammars

    params = SamplingParams() if seed is None else SamplingParams(0.9, top_p=0.95, seed=seed)
    prepared = prepare(plain, [TemplateMessage("user", QUESTION)], 120, params)
    prepared.request.constraint = Grammars(plain.tokenizer).json_schema(SCHEMA)
    text = "".join(Answer(plain, prepared))
    bodies = [
        asked(max_tokens=120, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}),
        asked(max_tokens=120, json_schema=SCHEMA),
    ]
    for body in bodies:
        told = client.post(CHAT, {**body, **sampled(seed)}).json()
        assert told["choices"][0]["message"]["content"] == text
        if told["choices"][0]["finish_reason"] == "stop":
            assert set(json.loads(text)) == {"name", "size"}
    assert text_of(client.events(CHAT, {**bodies[0], **sampled(seed)})) == text


def test_a_json_object(client: Any) -> None:
    body = asked(response_format={"type": "json_object"}, max_tokens=200, temperature=1.0, seed=3)
    choice = client.post(CHAT, body).json()["choices"][0]
    assert choice["message"]["content"].lstrip().startswith("{")


def test_a_grammar(client: Any) -> None:
    told = client.post(CHAT, asked(grammar='root ::= "yes" | "no"', n=4, temperature=1.0)).json()
    assert {choice["message"]["content"] for choice in told["choices"]} <= {"yes", "no"}
    assert {choice["finish_reason"] for choice in told["choices"]} == {"stop"}


def test_a_prediction_changes_no_text(client: Any) -> None:
    whole = client.post(CHAT, asked()).json()
    text = whole["choices"][0]["message"]["content"]
    again = client.post(CHAT, asked(prediction={"type": "content", "content": text})).json()
    assert again["choices"] == whole["choices"]
    assert again["timings"]["steps"] < whole["timings"]["steps"]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_repeats_itself_ends_where_that_is_asked_for(client: Any, stream: bool) -> None:
    body = asked(grammar='root ::= "name, "+', max_tokens=600)
    ended = client.events(CHAT, body | {"end_repeats": True})
    text, last = text_of(ended), [one for event in ended for one in event["choices"]][-1]
    assert text == ("name, " * 100)[: len(text)]
    assert (len(text), last["finish_reason"]) == (LEAST, "repeat")
    if stream:
        whole = text_of(client.events(CHAT, body))
    else:
        (choice,) = client.post(CHAT, body | {"end_repeats": True}).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "repeat")
        whole = client.post(CHAT, body).json()["choices"][0]["message"]["content"]
    assert len(whole) > LEAST
