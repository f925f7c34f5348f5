"""logit_bias and the penalties of presence and frequency, over the API."""

from collections import Counter
from typing import Any

import openai
import pytest

CHAT, COMPLETIONS, RAW, INFILL = "/v1/chat/completions", "/v1/completions", "/completion", "/infill"
USER = {"role": "user", "content": "Write a function that adds two numbers."}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 32},
    COMPLETIONS: {"prompt": "def add(a, b):\n", "max_tokens": 32},
    RAW: {"prompt": "def add(a, b):\n", "n_predict": 32},
    INFILL: {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n", "n_predict": 32},
}
SHIFTS = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8, "presence_penalty": -0.5},
    {"frequency_penalty": 2.0, "logit_bias": {"10": 4.0, "11": -100}},
    {"presence_penalty": 1.0, "repetition_penalty": 1.3},
]


def said(client: Any, path: str, **fields: Any) -> str:
    told = client.post(path, {**BODIES[path], "temperature": 0, **fields})
    assert told.status_code == 200, told.text
    answer = told.json()
    if "choices" not in answer:
        return str(answer["content"])
    (choice,) = answer["choices"]
    return str(choice["text"] if path == COMPLETIONS else choice["message"]["content"])


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.9, "seed": 4}])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RAW, INFILL])
def test_drafts_change_nothing(client: Any, path: str, sampled: dict[str, Any], shift: dict[str, Any]) -> None:
    drafted, plain = (said(client, path, **sampled, **shift, draft=draft) for draft in (True, False))
    assert drafted == plain


def test_a_token_that_is_biased_is_all_that_is_said(client: Any) -> None:
    (token,) = client.post("/tokenize", {"content": " return"}).json()["tokens"]
    for bias in ({str(token): 100}, [[token, 100]]):
        for path in (CHAT, COMPLETIONS, RAW):
            assert said(client, path, max_tokens=5, n_predict=5, logit_bias=bias) == " return" * 5


def test_a_token_that_is_forbidden_is_never_said(client: Any) -> None:
    tokens = client.post("/tokenize", {"content": said(client, CHAT)}).json()["tokens"]
    forbidden = {str(token): -100 for token in tokens}
    other = said(client, CHAT, logit_bias=forbidden)
    assert not set(client.post("/tokenize", {"content": other}).json()["tokens"]) & set(tokens)


def test_a_penalty_spreads_what_is_said(client: Any) -> None:
    body = {"prompt": [300, 300, 301], "max_tokens": 8, "logprobs": 0, "temperature": 0}
    bias = {str(token): 100 for token in range(300, 304)}
    plain, spread = (
        client.post(COMPLETIONS, {**body, "logit_bias": bias, "frequency_penalty": penalty}).json()
        for penalty in (0.0, 2.0)
    )
    most = [max(Counter(told["choices"][0]["logprobs"]["tokens"]).values()) for told in (plain, spread)]
    assert most[1] < most[0]


def test_a_form_of_the_answer_goes_before(client: Any) -> None:
    grammar = {"grammar": 'root ::= "yes" | "no"'}
    (yes,) = client.post("/tokenize", {"content": "yes"}).json()["tokens"][:1]
    assert said(client, CHAT, **grammar, logit_bias={str(yes): 100}).startswith("y")
    assert said(client, CHAT, **grammar, logit_bias={str(token): 100 for token in range(3000, 3100)}) in ("yes", "no")


def test_llama_servers_clients_are_told_what_was_set(client: Any) -> None:
    body = {**BODIES[RAW], "n_predict": 2, "presence_penalty": 0.5, "logit_bias": [[5, -1.5]]}
    told = client.post(RAW, body).json()["generation_settings"]
    assert (told["presence_penalty"], told["frequency_penalty"], told["logit_bias"]) == (0.5, 0.0, [[5, -1.5]])


def test_the_official_client(live: Any) -> None:
    with openai.OpenAI(api_key=live.key, base_url=f"http://127.0.0.1:{live.port}/v1", max_retries=0) as official:
        messages: Any = [USER]
        told = official.chat.completions.create(
            model="embedded",
            messages=messages,
            max_tokens=3,
            temperature=0,
            presence_penalty=2,
            frequency_penalty=2,
            logit_bias={"300": 100},
        )
        assert told.usage
        assert told.usage.completion_tokens == 3
