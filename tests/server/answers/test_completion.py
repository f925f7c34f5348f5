from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import ContextOverflow, ModelError, UsageError
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.answers.completion import complete, prepare_text
from localdflash.text import fim

GREEDY = SamplingParams()
CONTEXT = 256


@pytest.fixture(scope="module")
def loaded(tiny_pair: Path) -> Iterator[LoadedPair]:
    with LoadedPair(Options(str(tiny_pair / "target.gguf"), threads=1, context=CONTEXT, backend="llama.cpp")) as loaded:
        yield loaded


# The prompt


def test_the_prompt_is_prefix_and_suffix_in_the_models_form(loaded: LoadedPair) -> None:
    tokenizer = loaded.tokenizer
    answer = complete(loaded, "def f(", "):\n", 8, GREEDY)
    assert answer.request.ids == [
        tokenizer.special("<|fim_suffix|>"),
        *tokenizer.encode("):\n"),
        tokenizer.special("<|fim_prefix|>"),
        *tokenizer.encode("def f("),
        tokenizer.special("<|fim_middle|>"),
    ]
    assert {tokenizer.special(name) for name in ("<|endoftext|>", "<|fim_prefix|>")} <= answer.request.ends


def test_a_cancelled_completion_says_so(loaded: LoadedPair) -> None:
    calls = 0

    def cancelled() -> bool:
        nonlocal calls
        calls += 1
        return calls > 6

    answer = complete(loaded, "def f(", "\n", 200, SamplingParams(temperature=2.0, seed=1), cancelled=cancelled)
    assert 0 < len(list(answer)) < 200
    assert answer.request.finish_reason == "cancelled"
    assert len(answer.ids) < 100


def test_a_model_without_the_markers_is_refused(loaded: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fim, "FORMATS", {"glm": fim.FORMATS["glm"]})
    with pytest.raises(ModelError, match="no fill-in-the-middle tokens"):
        complete(loaded, "a", "b", 8, GREEDY)


# The context


def test_the_last_token_of_the_context_can_be_used(loaded: LoadedPair) -> None:
    prompt = len(complete(loaded, "def f(", "\n", 8, GREEDY).request.ids)
    answer = complete(loaded, "def f(", "\n", CONTEXT - prompt, SamplingParams(temperature=3.0, seed=5))
    list(answer)
    assert prompt + len(answer.ids) <= CONTEXT
    with pytest.raises(ContextOverflow, match=rf"the prompt has {prompt} tokens .* the context holds {CONTEXT};"):
        complete(loaded, "def f(", "\n", CONTEXT - prompt + 1, GREEDY)


# A prompt as it stands


def test_markers_of_a_prompt_are_markers(loaded: LoadedPair) -> None:
    tokenizer = loaded.tokenizer
    ids = prepare_text(loaded, "<|im_start|>user", 8, GREEDY).request.ids
    assert ids == [tokenizer.special("<|im_start|>"), *tokenizer.encode("user")]
    assert prepare_text(loaded, ids, 8, GREEDY).request.ids == ids


def test_prompts_that_are_none(loaded: LoadedPair) -> None:
    size = loaded.tokenizer.vocab_size
    prepare_text(loaded, [0, size - 1], 8, GREEDY)
    for prompt in ("", [], [-1], [size]):
        with pytest.raises(UsageError, match=r"^prompt: "):
            prepare_text(loaded, prompt, 8, GREEDY)
