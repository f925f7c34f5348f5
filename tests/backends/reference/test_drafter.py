"""DFlash in torch: what it keeps of a text, and a short vocabulary."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.base.errors import LocaldflashError


@pytest.fixture
def drafter(tiny_pair: Path) -> DFlashDrafter:
    target = load_decoder(tiny_pair / "target.gguf")
    return DFlashDrafter(load(tiny_pair / "drafter.gguf"), target.embed_tokens.weight, target.lm_head.weight)


def taps_of(drafter: DFlashDrafter, rows: int, seed: int = 0) -> NDArray[np.float32]:
    width = drafter.model.fc.in_features
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


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
