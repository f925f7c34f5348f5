"""DFlash, DSpark and DFlash 2 of every configuration, in every format, against an oracle in float64."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.base.errors import LocaldflashError
from localdflash.models.shapes.dflash_config import DFlashConfig
from tests.support.dflash_oracle import Oracle
from tests.support.random_drafters import (
    VARIANTS,
    YARN,
    Weights,
    config_of,
    random_weights,
    vocabulary_of,
    write_gguf,
    write_speculators,
    write_zlab,
)


def check(path: Path, wanted: DFlashConfig, weights: Weights, pair: Path) -> None:
    """Assert that the drafter of a file proposes what the oracle does, after contexts of several lengths."""
    target, dflash = load_decoder(pair / "target.gguf"), load(path)
    embedding, head = (table.double().numpy() for table in (target.embed_tokens.weight, target.lm_head.weight))
    oracle = Oracle(wanted, weights, embedding, head)
    for context in (1, 4, 23):
        drafter = DFlashDrafter(dflash, target.embed_tokens.weight, target.lm_head.weight)
        taps = taps_of(drafter, context, seed=context)
        drafter.observe([7] * context, taps)
        draft = drafter.propose(11, 99)
        tokens, confidence = oracle.propose(taps.astype(np.float64), 11)
        assert list(draft.tokens) == tokens
        assert np.allclose(draft.confidence, confidence, rtol=2e-3)
        assert drafter.propose(11, 3).tokens == draft.tokens[:3]


@pytest.mark.parametrize("variant", VARIANTS)
def test_proposes_what_the_oracle_does_from_every_format(variant: str, tiny_pair: Path, tmp_path: Path) -> None:
    config = config_of(variant, vocabulary_of(tiny_pair / "target.gguf"))
    weights = random_weights(config)
    check(write_gguf(tmp_path / "d.gguf", config, weights, tiny_pair / "target.gguf"), config, weights, tiny_pair)
    if "reduced" not in variant:
        check(write_zlab(tmp_path, config, weights), config, weights, tiny_pair)
    if variant in ("full", "reduced vocabulary", "DSpark that judges", "DFlash 2"):
        check(write_speculators(tmp_path, config, weights), config, weights, tiny_pair)


def test_biases_and_yarn(tiny_pair: Path, tmp_path: Path) -> None:
    config = config_of("DSpark that judges", vocabulary_of(tiny_pair / "target.gguf"))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    weights = random_weights(config)
    path = write_zlab(tmp_path, config, weights, rope_scaling=YARN | {"rope_type": "yarn", "truncate": False})
    found = load(path).config.decoder
    assert found.rope_magnitude > 1
    stretched = replace(
        config, decoder=replace(config.decoder, rope_factors=found.rope_factors, rope_magnitude=found.rope_magnitude)
    )
    check(path, stretched, weights, tiny_pair)


def test_older_names(tiny_pair: Path, tmp_path: Path) -> None:
    config = config_of("full", vocabulary_of(tiny_pair / "target.gguf"))
    weights = {name: value for name, value in random_weights(config).items() if not name.startswith("layers.1.")}
    config = replace(config, decoder=replace(config.decoder, num_hidden_layers=1))
    named = {f"model.{name}".replace("layers.0.", "midlayer."): value for name, value in weights.items()}
    check(write_zlab(tmp_path, config, named), config, weights, tiny_pair)


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
