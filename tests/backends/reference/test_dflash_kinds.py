"""DFlash, DSpark and DFlash 2 of every configuration, in every format, against an oracle in float64."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights.gguf import read_header
from tests.support.dflash_oracle import Oracle
from tests.support.random_drafters import (
    VARIANTS,
    YARN,
    Weights,
    config_of,
    random_weights,
    write_gguf,
    write_speculators,
    write_zlab,
)


def taps_of(config: DFlashConfig, rows: int, seed: int = 0) -> NDArray[np.float32]:
    width = len(config.taps) * config.decoder.hidden_size
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def vocabulary_of(pair: Path) -> int:
    return len(read_header(pair / "target.gguf").require("tokenizer.ggml.tokens", list))


def check(path: Path, wanted: DFlashConfig, weights: Weights, pair: Path) -> None:
    """The drafter of a file proposes what the oracle does, behind contexts of several lengths."""
    target, dflash = load_decoder(pair / "target.gguf"), load(path)
    embedding, head = (table.double().numpy() for table in (target.embed_tokens.weight, target.lm_head.weight))
    oracle = Oracle(wanted, weights, embedding, head)
    for context in (1, 4, 23):
        drafter = DFlashDrafter(dflash, target.embed_tokens.weight, target.lm_head.weight)
        taps = taps_of(wanted, context, seed=context)
        drafter.observe([7] * context, taps)
        draft = drafter.propose(11, 99)
        tokens, confidence = oracle.propose(taps.astype(np.float64), 11)
        assert list(draft.tokens) == tokens
        assert np.allclose(draft.confidence, confidence, rtol=2e-3)
        assert drafter.propose(11, 3).tokens == draft.tokens[:3]


@pytest.mark.parametrize("variant", VARIANTS)
def test_proposes_what_the_oracle_does_from_every_format(variant: str, tiny_pair: Path, tmp_path: Path) -> None:
    config = config_of(variant, vocabulary_of(tiny_pair))
    weights = random_weights(config)
    check(write_gguf(tmp_path / "d.gguf", config, weights, tiny_pair / "target.gguf"), config, weights, tiny_pair)
    if "reduced" not in variant:
        check(write_zlab(tmp_path, config, weights), config, weights, tiny_pair)
    if variant in ("full", "reduced vocabulary", "DSpark that judges", "DFlash 2"):
        check(write_speculators(tmp_path, config, weights), config, weights, tiny_pair)


def test_biases_and_yarn(tiny_pair: Path, tmp_path: Path) -> None:
    config = config_of("DSpark that judges", vocabulary_of(tiny_pair))
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
    config = config_of("full", vocabulary_of(tiny_pair))
    weights = {name: value for name, value in random_weights(config).items() if not name.startswith("layers.1.")}
    config = replace(config, decoder=replace(config.decoder, num_hidden_layers=1))
    named = {f"model.{name}".replace("layers.0.", "midlayer."): value for name, value in weights.items()}
    check(write_zlab(tmp_path, config, named), config, weights, tiny_pair)
