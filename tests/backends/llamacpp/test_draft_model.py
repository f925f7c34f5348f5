"""A draft model proposes its own greedy text after any accepted, rejected, rolled back or saved tokens."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.backends.llamacpp.draft_model import MAX_DRAFTED, LlamaCppDraftModel
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from tests.support.converted_models import VOCABULARY, ids_of
from tests.support.target_models import case_of

CONTEXT = 128
TIE = 0.01  # logits closer than this may swap ranks: the KV cache is float16


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppTarget]:
    path = case_of("llama").write(tmp_path_factory.mktemp("target") / "target.gguf")
    with closing(LlamaCppTarget(path, CONTEXT, 1)) as target:
        yield target


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def small(
    request: pytest.FixtureRequest, target: LlamaCppTarget, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LlamaCppDraftModel, Any]]:
    """A drafter, with and without recurrent layers, and Hugging Face's model of the same weights."""
    case = case_of(request.param)
    path = case.write(tmp_path_factory.mktemp("small") / "small.gguf")
    with closing(LlamaCppDraftModel(path, target, threads=1)) as drafter:
        yield drafter, case.model


def check(drafter: LlamaCppDraftModel, model: Any, ids: list[int], anchor: int, limit: int) -> list[int]:
    """Assert that a draft is the model's greedy text, up to a near tie; return its tokens."""
    draft, text = drafter.propose(anchor, limit), [*ids, anchor]
    assert len(draft) == min(limit, MAX_DRAFTED, CONTEXT - len(text))
    for token, confidence in zip(draft.tokens, draft.confidence, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([text])).logits[0, -1]
        assert confidence == pytest.approx(float(logits.softmax(0)[token]), rel=0.02)
        best, second = logits.topk(2).values
        if best - second < TIE:
            break
        assert token == int(logits.argmax())
        text.append(token)
    return list(draft.tokens)


Step = tuple[str, int, int]
STEPS = st.lists(st.tuples(st.sampled_from(["accept", "plain", "back", "save"]), st.integers(0, 9), st.integers(1, 9)))


@settings(max_examples=6)
@given(prompt=st.integers(1, 40), steps=STEPS)
def test_random_histories(small: tuple[LlamaCppDraftModel, Any], prompt: int, steps: list[Step]) -> None:
    drafter, model = small
    drafter.rollback(0)
    ids, anchor, draft = ids_of(prompt, prompt), 5, list[int]()
    drafter.observe(ids, None)
    for what, count, limit in steps[:8]:
        if what == "accept":  # part of the last draft, then another token
            fresh = [anchor, *draft[:count]]
        elif what == "plain":  # tokens that were not drafted
            fresh = ids_of(count + 1, len(ids))
        else:
            fresh = []
        if len(ids) + len(fresh) < CONTEXT - 1:
            drafter.observe(fresh, None)
            ids, anchor = ids + fresh, (7 * len(ids) + count) % VOCABULARY
        if what == "back":
            ids = ids[: max(len(ids) - 3 * count, 1)]
            drafter.rollback(len(ids))
        if what == "save":
            state = drafter.save()
            drafter.rollback(0)
            drafter.observe(ids_of(20, 77), None)
            drafter.propose(3, 4)
            drafter.load(state, ids)
        draft = check(drafter, model, ids, anchor, limit)


def test_drafts_up_to_the_end_of_the_context(small: tuple[LlamaCppDraftModel, Any]) -> None:
    drafter, model = small
    drafter.rollback(0)
    ids = ids_of(CONTEXT - 4, 2)
    drafter.observe(ids, None)
    assert len(check(drafter, model, ids, 3, 8)) == 3
    drafter.observe([3, 5, 6], None)
    assert len(drafter.propose(9, 8)) == 0
