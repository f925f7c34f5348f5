"""Drafter heads on hidden states propose the same as a float64 computation of the same weights, after any history.

The oracle reads the whole text for every draft, so stale state in the drafter's cache would show.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from localdflash.backends.llamacpp.chained import ChainedDrafter, LlamaCppEagle3Drafter, LlamaCppMtpDrafter
from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH_WITH_STATES
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.engine.draft import EMPTY_DRAFT
from tests.support import mtp_models
from tests.support.converted_models import VOCABULARY, ids_of
from tests.support.eagle3_models import random_eagle3
from tests.support.target_models import WIDE, case_of

CONTEXT, HIDDEN = 256, 64
WAY = WIDE.limit_width(MAX_WIDTH_WITH_STATES)
TIE = 1e-3  # logits closer than this may swap ranks
Propose = Callable[[Sequence[int], NDArray[np.float32], int, int], Sequence[Any]]
EAGLES: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "eagle3 with tables of its own": {"own": True, "norm_before_residual": True},
    "eagle3 of few tokens": {"short": tuple(range(3, 90, 4))},
}
HEADS = ("qwen35", "qwen35moe")


class Tried(NamedTuple):
    """A drafter, its oracle, and the width of its taps."""

    drafter: ChainedDrafter
    oracle: Propose
    width: int


@pytest.fixture(scope="module", params=[*HEADS, *EAGLES])
def tried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    folder: Path = tmp_path_factory.mktemp("chained")
    if request.param in HEADS:
        case, head = mtp_models.case_of(request.param)
        path = case.write(folder / "target.gguf")
        with (
            closing(LlamaCppTarget(path, CONTEXT, 1, (), WAY, mtp=True)) as target,
            closing(LlamaCppMtpDrafter(target, 1)) as drafter,
        ):
            assert drafter.taps == (mtp_models.TRUNK - 1,)
            yield Tried(drafter, head.propose, HIDDEN)
        return
    case = case_of("llama")
    path = case.write(folder / "target.gguf")
    tables = case.tensors["token_embd.weight"], case.tensors["output.weight"]
    eagle = random_eagle3(*tables, **EAGLES[request.param])
    with (
        closing(LlamaCppTarget(path, CONTEXT, 1)) as target,
        closing(LlamaCppEagle3Drafter(eagle.write(folder / "eagle3.gguf", VOCABULARY), target, 1)) as eagle3,
    ):
        yield Tried(eagle3, eagle.propose, 3 * HIDDEN)


class Text:
    """Committed ids, with the features of their positions."""

    def __init__(self, width: int) -> None:
        self._all = np.random.default_rng(1).normal(size=(CONTEXT, width)).astype(np.float32)
        self.ids: list[int] = []

    def grow(self, drafter: ChainedDrafter, ids: Sequence[int]) -> None:
        drafter.observe(ids, self._all[len(self.ids) :][: len(ids)])
        self.ids += ids

    @property
    def taps(self) -> NDArray[np.float32]:
        return self._all[: len(self.ids)]


def check(tried: Tried, text: Text, anchor: int, limit: int) -> list[int]:
    draft = tried.drafter.propose(anchor, limit)
    assert len(draft) == min(limit, tried.drafter.max_draft_tokens)
    expected = tried.oracle(text.ids, text.taps, anchor, len(draft))
    for token, confidence, logits in zip(draft.tokens, draft.confidence, map(np.asarray, expected), strict=True):
        best, second = np.sort(logits)[:-3:-1]
        if best - second < TIE:
            break
        assert token == int(logits.argmax())
        assert confidence == pytest.approx(float(1 / np.exp(logits - best).sum()), rel=0.01)
    return list(draft.tokens)


STEPS = st.lists(
    st.tuples(st.sampled_from(["accept", "plain", "save"]), st.integers(0, 9), st.integers(1, 9)), max_size=6
)


@settings(max_examples=6)
@given(prompt=st.integers(1, 30), steps=STEPS)
def test_random_histories(tried: Tried, prompt: int, steps: list[tuple[str, int, int]]) -> None:
    drafter, text, anchor, draft = tried.drafter, Text(tried.width), 5, list[int]()
    drafter.rollback(0)
    assert drafter.propose(3, 4) is EMPTY_DRAFT
    text.grow(drafter, ids_of(prompt + 3, prompt))
    drafter.rollback(prompt)  # of unread features
    text.ids = text.ids[:prompt]
    for what, count, limit in steps:
        if what == "save":
            state = drafter.save()
            drafter.rollback(0)
            drafter.observe(ids_of(20, 77), np.ones((20, tried.width), np.float32))
            drafter.propose(3, 4)
            drafter.load(state, text.ids)
        else:
            fresh = [anchor, *draft[:count]] if what == "accept" else ids_of(count + 1, len(text.ids))
            text.grow(drafter, fresh)
            anchor = (7 * len(text.ids) + count) % VOCABULARY
        assert drafter.length == len(text.ids)
        draft = check(tried, text, anchor, limit)


@pytest.mark.parametrize("architecture", HEADS)
def test_head_matches_the_models_own_head(architecture: str, tmp_path: Path) -> None:
    """Loading the head does not change the model."""
    case, _ = mtp_models.case_of(architecture)
    ids = ids_of(15)
    with torch.no_grad():
        states = case.model.model(torch.tensor([ids])).last_hidden_state[0].numpy()
        logits = case.model(torch.tensor([[*ids, 5]])).logits[0, -1].numpy()
    with closing(LlamaCppTarget(case.write(tmp_path / "model.gguf"), CONTEXT, 1, (), WAY, mtp=True)) as target:
        target.set_taps((mtp_models.TRUNK - 1,))
        taps = target.extend(ids)
        assert taps is not None
        assert np.abs(taps - states).max() < 1e-4
        assert np.abs(target.verify(5, EMPTY_DRAFT).logits[0] - logits).max() < 1e-4
