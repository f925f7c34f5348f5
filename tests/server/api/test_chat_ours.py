"""What chats may say besides OpenAI's fields: plain decoding, an answer to go on with, sizes of tokens, counting."""

from itertools import accumulate
from typing import Any

import pytest

from localdflash.loading.load_pair import LoadedPair
from localdflash.text.chat_template import TemplateMessage, encode_chat
from tests.server.api.test_chat import CHAT, QUESTION, SEEDS, asked, sampled, text_of

USER = {"role": "user", "content": QUESTION}


@pytest.mark.parametrize("seed", SEEDS)
def test_without_drafts_the_text_is_the_same(client: Any, seed: int | None) -> None:
    drafted = client.post(CHAT, asked(**sampled(seed))).json()
    plain = client.post(CHAT, asked(draft=False, **sampled(seed))).json()
    again = client.post(CHAT, asked(draft=None, **sampled(seed))).json()
    assert drafted["choices"] == plain["choices"] == again["choices"]
    assert drafted["timings"]["draft_n"] > 0
    assert again["timings"]["draft_n"] > 0
    assert plain["timings"]["draft_n"] == 0
    assert plain["timings"]["steps"] == plain["timings"]["predicted_n"] > drafted["timings"]["steps"]


def test_completions_decode_plainly_too(client: Any) -> None:
    body = {"prompt": "first = 1\nsecond = 2\n" * 4 + "first", "max_tokens": 40}
    told = [
        client.post("/v1/completions", {**body, "temperature": 0, "draft": draft}).json() for draft in (True, False)
    ]
    assert told[0]["choices"] == told[1]["choices"]
    assert [one["timings"]["draft_n"] > 0 for one in told] == [True, False]


def test_a_grammar_forces_nothing_without_drafts(client: Any) -> None:
    body = asked(grammar='root ::= "a long string that is the only one there can be"', max_tokens=40)
    told = [client.post(CHAT, {**body, "draft": draft}).json() for draft in (True, False)]
    assert told[0]["choices"] == told[1]["choices"]
    assert [one["timings"]["draft_n"] > 0 for one in told] == [True, False]


def test_drafts_go_on_after_an_answer_without(client: Any) -> None:
    client.post(CHAT, asked(draft=False, max_tokens=64))
    again = client.post(CHAT, asked(max_tokens=64)).json()
    assert again["timings"]["draft_n_accepted"] > 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"] - 1


@pytest.mark.parametrize("seed", SEEDS)
def test_an_answer_goes_on_where_it_stopped(client: Any, seed: int | None) -> None:
    whole = client.post(CHAT, asked(max_tokens=64, **sampled(None))).json()["choices"][0]["message"]["content"]
    begun = client.post(CHAT, asked(max_tokens=24, **sampled(seed))).json()["choices"][0]["message"]["content"]
    body = asked(messages=[USER, {"role": "assistant", "content": begun}], max_tokens=40, continue_final_message=True)
    told = client.post(CHAT, body).json()
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] >= told["usage"]["prompt_tokens"] - 3
    if seed is None:
        assert begun + told["choices"][0]["message"]["content"] == whole
    assert text_of(client.events(CHAT, body)) == told["choices"][0]["message"]["content"]


def test_an_answer_without_a_text_is_begun(client: Any) -> None:
    body = asked(messages=[USER, {"role": "assistant", "content": ""}], continue_final_message=True)
    assert client.post(CHAT, body).json()["choices"] == client.post(CHAT, asked()).json()["choices"]


@pytest.mark.parametrize("path", [CHAT, "/apply-template"])
def test_only_an_answer_is_gone_on_with(client: Any, path: str) -> None:
    told = client.post(path, {"messages": [USER], "continue_final_message": True})
    assert told.status_code == 400
    assert told.json()["error"]["param"] == "continue_final_message"


def test_there_must_be_a_question_too(client: Any) -> None:
    alone = [{"role": "assistant", "content": "x"}]
    assert client.post(CHAT, asked(messages=alone, continue_final_message=True)).status_code == 400


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_the_sizes_of_tokens_are_those_of_the_text(client: Any, seed: int | None) -> None:
    """Also where a hot model writes bytes that are no characters."""
    hot = {} if seed is None else {"temperature": 2.5, "seed": seed}
    events = client.events(CHAT, asked(max_tokens=120, steps=True, **hot))
    steps = [event for event in events if "step" in event]
    told = list(accumulate(len(event["choices"][0]["delta"]["content"].encode()) for event in steps))
    assert list(accumulate(sum(event["step"]["sizes"]) for event in steps)) == told
    assert all(len(event["step"]["sizes"]) == len(event["step"]["tokens"]) for event in steps)


def test_an_end_token_has_no_size(client: Any, plain: LoadedPair) -> None:
    events = client.events(CHAT, asked(max_tokens=200, steps=True, grammar='root ::= "yes"'))
    last = [event["step"] for event in events if "step" in event][-1]
    assert (events[-1]["choices"][0]["finish_reason"], last["sizes"][-1]) == ("stop", 0)


def test_each_choice_counts_its_own_sizes(client: Any) -> None:
    events = client.events(CHAT, asked(max_tokens=60, n=3, temperature=2.5, seed=3, steps=True))
    for index in range(3):
        steps = [event["step"] for event in events if "step" in event and event["choices"][0]["index"] == index]
        rest = [event for event in events if "step" not in event and event["choices"][0]["index"] == index]
        held = sum(len(event["choices"][0]["delta"].get("content", "").encode()) for event in rest)
        assert sum(sum(step["sizes"]) for step in steps) + held == len(text_of(events, index).encode())


def test_tokens_are_counted_as_a_chat_reads_them(client: Any, plain: LoadedPair) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is <|im_end|>?"}]
    told = client.post("/apply-template", {"messages": messages, "count": True}).json()
    template = plain.tokenizer.chat_template() or ""
    ids = encode_chat(plain.tokenizer, template, [TemplateMessage(m["role"], m["content"]) for m in messages])  # type: ignore[arg-type]
    assert told == {"tokens": len(ids)}
    assert client.post(CHAT, asked(messages=messages)).json()["usage"]["prompt_tokens"] == len(ids)


def test_an_answer_to_go_on_with_is_counted_and_shown(client: Any) -> None:
    body = {"messages": [USER, {"role": "assistant", "content": "def add"}], "continue_final_message": True}
    shown = client.post("/apply-template", body).json()["prompt"]
    assert shown.endswith("def add")
    more = client.post("/apply-template", {**body, "count": True}).json()["tokens"]
    assert more - client.post("/apply-template", {"messages": [USER], "count": True}).json()["tokens"] == 2
