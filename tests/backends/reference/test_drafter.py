"""DFlash in torch: what it keeps of a text, and a short vocabulary."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.base.errors import LocaldflashError
from tests.support.dflash_oracle import Oracle


@pytest.fixture
def drafter(tiny_pair: Path) -> DFlashDrafter:
    target = load_decoder(tiny_pair / "target.gguf")
    return DFlashDrafter(load(tiny_pair / "drafter.gguf"), target.embed_tokens.weight, target.lm_head.weight)


def taps_of(drafter: DFlashDrafter, rows: int, seed: int = 0) -> NDArray[np.float32]:
    width = drafter.model.fc.in_features
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


@pytest.mark.parametrize("ids", [[7], [0, 511], list(range(2, 500, 3))])
def test_a_short_vocabulary_gives_the_best_of_its_rows(ids: list[int], tiny_pair: Path) -> None:
    target, dflash = load_decoder(tiny_pair / "target.gguf"), load(tiny_pair / "drafter.gguf")
    dflash.config = replace(dflash.config, short=tuple(ids))
    head = target.lm_head.weight
    drafter = DFlashDrafter(dflash, target.embed_tokens.weight, head)
    taps = taps_of(drafter, 9)
    drafter.observe([7] * 9, taps)
    found = drafter.propose(11, 99)
    embedding, rows = (table.double().numpy() for table in (target.embed_tokens.weight, head))
    weights = {name: tensor.numpy() for name, tensor in dflash.state_dict().items()}
    tokens, confidence = Oracle(dflash.config, weights, embedding, rows).propose(taps.astype(np.float64), 11)
    assert list(found.tokens) == tokens
    assert np.allclose(found.confidence, confidence, rtol=1e-3)
    equal = DFlashDrafter(dflash, target.embed_tokens.weight, head[:1].expand(head.shape))
    equal.observe([7] * 9, taps)
    assert set(equal.propose(11, 99).tokens) == {ids[0]}  # of equals the lowest


def test_features_may_come_in_any_portions_and_rejected_ones_leave_no_trace(drafter: DFlashDrafter) -> None:
    taps = taps_of(drafter, 20)
    drafter.observe([7] * 20, taps)
    expected = drafter.propose(3, 7)
    drafter.rollback(6)
    drafter.observe([7] * 9, taps_of(drafter, 9, seed=1))
    drafter.rollback(6)
    for row in taps[6:]:
        drafter.observe([7], row[None])
    again = drafter.propose(3, 7)
    assert again.tokens == expected.tokens
    assert np.allclose(again.confidence, expected.confidence, rtol=1e-4)


def test_a_saved_state_drafts_the_same(drafter: DFlashDrafter) -> None:
    drafter.observe([7] * 12, taps_of(drafter, 12))
    expected, state = drafter.propose(3, 7), drafter.save()
    drafter.rollback(0)
    drafter.load(state, [7] * 12)
    assert drafter.length == 12
    assert drafter.propose(3, 7) == expected


def test_missing_taps_are_said(drafter: DFlashDrafter) -> None:
    with pytest.raises(LocaldflashError, match="taps are off"):
        drafter.observe([1], None)
