"""OpenAI's chat beyond the contract: usage, logprobs, steps, predictions and continued answers."""

import math
from itertools import accumulate
from typing import Any

import pytest

from localdflash.text.stream import MIN_REPEAT_CHARS
from tests.server.api.dialects import CHAT, CHATS, QUESTION, RESPONSES, USER

PATH = CHAT.path
HOT = {"temperature": 2.5, "seed": 3}


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER], "temperature": 0, "max_tokens": 48, **fields}


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    parts = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(part["delta"].get("content", "") for part in parts)


def tokens_of(client: Any, *messages: dict[str, Any], **more: Any) -> int:
    return int(client.post("/apply-template", {"messages": [*messages], "count": True, **more}).json()["tokens"])


def test_usage_and_timings_add_up(client: Any) -> None:
    new = [{"role": "user", "content": "# nobody asked this before\n" * 8}]
    tokens = tokens_of(client, *new)
    first = client.post(PATH, asked(messages=new, max_tokens=2, n=2)).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] < tokens / 2, "what the second choice reuses was not cached"
    told = client.post(PATH, asked(messages=new, max_tokens=60)).json()
    usage, timings = told["usage"], told["timings"]
    assert usage["prompt_tokens"] == tokens
    assert usage["completion_tokens"] == timings["predicted_n"] == 60
    assert usage["total_tokens"] == tokens + 60
    assert usage["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"] == tokens - 1
    assert timings["prompt_n"] == 1
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == timings["draft_n_accepted"]
    assert sum(details.values()) == timings["draft_n"]
    assert timings["tau"] == pytest.approx(timings["predicted_n"] / timings["steps"], abs=1e-3)
    assert sum(timings["steps_by_drafter"].values()) == timings["steps"]
    assert all(0 <= share <= 1 for share in timings["accept_by_slot"])
    rate = 1e3 * timings["predicted_n"] / timings["predicted_ms"]
    assert timings["predicted_per_second"] == pytest.approx(rate, rel=1e-3)
    assert client.post(PATH, asked(max_tokens=0)).json()["choices"][0]["message"]["content"] == ""


def test_log_probabilities(client: Any) -> None:
    bare = client.post(PATH, asked()).json()["choices"][0]
    choice = client.post(PATH, asked(logprobs=True, top_logprobs=3)).json()["choices"][0]
    assert choice["message"] == bare["message"]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in content).decode() == choice["message"]["content"]
    for one in content:
        assert one["logprob"] <= 0
        assert [one["token"], one["logprob"]] == [one["top_logprobs"][0]["token"], one["top_logprobs"][0]["logprob"]]
        assert len(one["top_logprobs"]) == 3
        assert sum(math.exp(other["logprob"]) for other in one["top_logprobs"]) <= 1 + 1e-9
    parts = [part for event in client.events(PATH, asked(logprobs=True, top_logprobs=3)) for part in event["choices"]]
    assert [one for part in parts for one in (part["logprobs"] or {}).get("content", [])] == content
    alone = client.post(PATH, asked(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [one["top_logprobs"] for one in alone] == [[]] * len(content)


def test_a_prediction_changes_no_text(client: Any) -> None:
    whole = client.post(PATH, asked()).json()
    text = whole["choices"][0]["message"]["content"]
    again = client.post(PATH, asked(prediction={"type": "content", "content": text})).json()
    assert again["choices"] == whole["choices"]
    assert again["timings"]["steps"] < whole["timings"]["steps"]


def test_an_answer_that_repeats_itself_ends_where_that_is_asked_for(client: Any) -> None:
    body = asked(grammar='root ::= "name, "+', max_tokens=300)
    ended = client.events(PATH, body | {"end_repeats": True})
    text, last = text_of(ended), [one for event in ended for one in event["choices"]][-1]
    assert (last["finish_reason"], text) == ("repeat", "name, " * (len(text) // 6) + "name, "[: len(text) % 6])
    (choice,) = client.post(PATH, body | {"end_repeats": True}).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "repeat")
    assert len(client.post(PATH, body).json()["choices"][0]["message"]["content"]) > max(MIN_REPEAT_CHARS, len(text))


@pytest.mark.parametrize("seed", [None, 3])
def test_steps_tell_how_each_token_came(client: Any, seed: int | None) -> None:
    """Also with a high temperature, where tokens are not valid UTF-8."""
    hot = {} if seed is None else {**HOT, "seed": seed}
    events = client.events(PATH, asked(max_tokens=100, steps=True, **hot))
    parts = [event for event in events if "step" in event]
    steps = [event["step"] for event in parts]
    assert {"drafter", "drafted", "accepted", "tokens", "sizes", "ms"} == set(steps[0])
    assert all(step["accepted"] <= step["drafted"] and step["accepted"] <= len(step["tokens"]) for step in steps)
    assert sum(step["accepted"] for step in steps) == events[-1]["timings"]["draft_n_accepted"]
    assert all(len(step["sizes"]) == len(step["tokens"]) for step in steps)
    told = list(accumulate(len(event["choices"][0]["delta"]["content"].encode()) for event in parts))
    assert list(accumulate(sum(step["sizes"]) for step in steps)) == told
    if seed is None:
        assert "".join(token for step in steps for token in step["tokens"]) == text_of(events)


def test_values_of_other_servers(client: Any) -> None:
    sampled: dict[str, Any] = {"temperature": 2.0, "seed": 1, "max_tokens": 12}
    greedy = CHAT.ask(client, max_tokens=12)
    for dialect in CHATS:
        assert dialect.ask(client, **{**sampled, dialect.limit: 12}, top_p=0).text == greedy.text
    assert CHAT.ask(client, **sampled, top_k=-1) == CHAT.ask(client, **sampled, top_k=0)
    reserved = {"add_generation_prompt": False, "messages": "none", "tools": "none", "thinking_budget": 100}
    assert CHAT.ask(client, max_tokens=12, chat_template_kwargs=reserved) == greedy


def test_a_refusal_in_the_history_is_text(client: Any) -> None:
    sizes = set()
    for part in ({"type": "refusal", "refusal": "No."}, {"type": "output_text", "text": "No."}):
        messages = [USER, {"role": "assistant", "content": [part]}, USER]
        sizes |= {CHAT.ask(client, messages=messages).sizes[0], RESPONSES.ask(client, input=messages).sizes[0]}
    assert len(sizes) == 1


def test_half_of_a_surrogate_pair_is_replaced(client: Any) -> None:
    """A JavaScript client that cuts a text inside an emoji sends one."""
    for escaped, text in (
        (r"a\ud83d", "a\ufffd"),
        (r"\uDE00b", "\ufffdb"),
        (r"\ud83d\ude00 \ud83d", "😀 \ufffd"),
        (r"\\ud83d", r"\ud83d"),
    ):
        body = b'{"content": "%s"}' % escaped.encode()
        sent = client("POST", "/tokenize", content=body, headers={"Content-Type": "application/json"})
        assert sent.json() == client.post("/tokenize", {"content": text}).json()
    sent = client("POST", "/tokenize", content=rb'{"content": "\ud8"xy"}', headers={"Content-Type": "application/json"})
    assert sent.status_code == 400


def test_an_answer_goes_on_where_it_stopped(client: Any) -> None:
    begun = client.post(PATH, asked(max_tokens=24)).json()["choices"][0]["message"]["content"]
    messages = [USER, {"role": "assistant", "content": begun}]
    body = asked(messages=messages, max_tokens=24, continue_final_message=True)
    told = client.post(PATH, body).json()
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] >= told["usage"]["prompt_tokens"] - 3
    assert text_of(client.events(PATH, body)) == told["choices"][0]["message"]["content"]
    shown = client.post("/apply-template", {"messages": messages, "continue_final_message": True}).json()["prompt"]
    assert shown.endswith(begun)
    assert tokens_of(client, *messages, continue_final_message=True) == told["usage"]["prompt_tokens"]
    whole = client.post(PATH, asked(max_tokens=48)).json()["choices"]
    assert begun + told["choices"][0]["message"]["content"] == whole[0]["message"]["content"]
    empty = asked(messages=[USER, {"role": "assistant", "content": ""}], continue_final_message=True)
    assert client.post(PATH, empty).json()["choices"] == whole


@pytest.mark.parametrize("path", [PATH, "/apply-template"])
def test_only_an_answer_to_a_question_is_gone_on_with(client: Any, path: str) -> None:
    told = client.post(path, {"messages": [USER], "continue_final_message": True})
    assert (told.status_code, told.json()["error"]["param"]) == (400, "continue_final_message")
    alone = [{"role": "assistant", "content": QUESTION}]
    assert client.post(PATH, asked(messages=alone, continue_final_message=True)).status_code == 400
