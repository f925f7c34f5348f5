"""OpenAI's completions beyond the contract: infilling, several prompts, limits."""

from typing import Any
from unittest.mock import Mock

import pytest

from localdflash.base.errors import ModelError
from localdflash.engine.generate import Request
from localdflash.engine.sampling import SampledToken
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab.scripts.support.direct_answer import answer_directly
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.chat_request import render_chat
from localdflash.server.api.completion_request import prepare_middle
from localdflash.server.api.generation import Choice
from localdflash.server.api.openai_api import CompletionChoices
from localdflash.text.chat_template import TemplateMessage
from tests.server.api.dialects import COMPLETIONS as DIALECT

PATH = DIALECT.path
PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"


def test_the_middle_of_a_text(client: Any, plain: LoadedPair) -> None:
    sampling: dict[str, Any] = {"temperature": 0.8, "seed": 2}
    text = answer_directly(plain, prepare_middle(plain, PREFIX, SUFFIX, 24, SamplingParams(**sampling))).text
    bodies = [
        {"prompt": PREFIX, "suffix": SUFFIX},
        {"prompt": f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"},
        {"prompt": f"<|fim_suffix|>{SUFFIX}<|fim_prefix|>{PREFIX}<|fim_middle|>"},
    ]
    for body in bodies:
        told = client.post(PATH, {**body, **sampling, "max_tokens": 24}).json()
        assert told["choices"][0]["text"] == text
    assert (told["object"], told["id"][:5]) == ("text_completion", "cmpl-")
    assert set(told["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}
    assert DIALECT.both(client, **bodies[0], **sampling, max_tokens=24).text == text


def test_prompts_may_be_ids_or_several(client: Any) -> None:
    text = DIALECT.ask(client, prompt=PREFIX).text
    ids = client.post("/tokenize", {"content": PREFIX}).json()["tokens"]
    assert [DIALECT.ask(client, prompt=prompt).text for prompt in (ids, [PREFIX], [ids])] == [text] * 3
    body = {"max_tokens": 6, "temperature": 1.2, "seed": 3, "n": 2}
    told = client.post(PATH, {**body, "prompt": ["import ", "class A"]}).json()
    alone = [client.post(PATH, {**body, "prompt": prompt}).json() for prompt in ("import ", "class A")]
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in told["choices"]] == [c["text"] for one in alone for c in one["choices"]]
    assert told["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)
    assert client.post(PATH, {"prompt": PREFIX, "seed": 4}).json()["usage"]["completion_tokens"] <= 16


def test_log_probabilities_inside_a_character() -> None:
    pieces = ["é".encode(), b"\xf0", b"\x9f", b"\x98\x80", b"a"]
    tokenizer = Mock(
        piece=lambda token, special=False: pieces[token], spell=lambda ids: b"".join(map(pieces.__getitem__, ids))
    )
    chosen = [SampledToken(token, -1.0, ((1, -2.0), (2, -3.0))) for token in range(5)]
    choice = Choice(0, Request([], 5), text="é😀a", chosen=chosen)
    logprobs = CompletionChoices(tokenizer, logprobs=True).choice(choice)["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 1, 1, 2]
    assert logprobs["tokens"] == ["é", r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x98\x80", "a"]
    assert logprobs["top_logprobs"] == [{r"bytes:\xf0": -2.0, r"bytes:\x9f": -3.0}] * 5


def test_the_last_token_of_the_context_can_be_used(plain: LoadedPair) -> None:
    prompt = len(prepare_middle(plain, "def f(", "\n", 8, SamplingParams()).requests[0].ids)
    whole = prepare_middle(plain, "def f(", "\n", plain.context - prompt, SamplingParams(temperature=3.0, seed=5))
    assert prompt + len(answer_directly(plain, whole).ids) <= plain.context


def test_a_model_without_a_chat_template_completes_only(plain: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain.tokenizer, "chat_template", lambda: "")
    with pytest.raises(ModelError, match="the model has no chat template; use it for completions only"):
        render_chat(plain, [TemplateMessage("user", "Hello")])
