"""DFlash, DSpark and DFlash 2 of every configuration, in every format, against an oracle in float64."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray

from localdflash.backends.reference.dflash_files import check_gguf, load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.dflash_file import config_of_gguf
from localdflash.models.weights.gguf import read_header
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


def check(path: Path, reference: DFlashConfig, weights: Weights, pair: Path) -> None:
    """Assert that the drafter of a file proposes the oracle's tokens, after contexts of several lengths."""
    target, dflash = load_decoder(pair / "target.gguf"), load(path)
    embedding, head = (table.double().numpy() for table in (target.embed_tokens.weight, target.lm_head.weight))
    oracle = Oracle(reference, weights, embedding, head)
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
    if variant in ("full", "reduced vocabulary", "DSpark with confidence", "DFlash 2"):
        check(write_speculators(tmp_path, config, weights), config, weights, tiny_pair)


def test_biases_and_yarn(tiny_pair: Path, tmp_path: Path) -> None:
    config = config_of("DSpark with confidence", vocabulary_of(tiny_pair / "target.gguf"))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    weights = random_weights(config)
    path = write_zlab(tmp_path, config, weights, rope_scaling=YARN | {"rope_type": "yarn", "truncate": False})
    actual = load(path).config.decoder
    assert actual.rope_magnitude > 1
    stretched = replace(
        config, decoder=replace(config.decoder, rope_factors=actual.rope_factors, rope_magnitude=actual.rope_magnitude)
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


def test_missing_taps_are_reported(drafter: DFlashDrafter) -> None:
    with pytest.raises(LocaldflashError, match="taps are off"):
        drafter.observe([1], None)


def copy(pair: Path, folder: Path) -> Path:
    for name in ("drafter.gguf", "drafter.safetensors", "config.json"):
        shutil.copy(pair / name, folder / name)
    return folder / "drafter.safetensors"


def test_safetensors_hold_the_network_bit_by_bit(tiny_pair: Path) -> None:
    drafter = load(tiny_pair / "drafter.safetensors")
    expected = safetensors.torch.load_file(tiny_pair / "drafter.safetensors")
    state = drafter.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name].float()) for name in expected)
    assert not drafter.training
    assert not any(p.requires_grad for p in drafter.parameters())
    assert all(p.dtype == torch.float32 for p in drafter.parameters())


def test_a_configuration_that_is_missing_or_no_json(tiny_pair: Path, tmp_path: Path) -> None:
    path = copy(tiny_pair, tmp_path)
    for text in ("", "[" * 100_000, "\xff", None):
        (tmp_path / "config.json").write_text(text or "", encoding="latin-1")
        if text is None:
            (tmp_path / "config.json").unlink()
        with pytest.raises(ModelError, match=r"config\.json"):
            load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("fc.weight"), r"fc\.weight is missing"),
        (lambda tensors: tensors.update({"fc.bias": torch.zeros(1)}), r"fc\.bias is unexpected"),
        (lambda tensors: tensors.update({"norm.weight": torch.zeros(65)}), r"norm\.weight has shape \[65\].*\[64\]"),
        (
            lambda tensors: tensors.update({"fc.weight": tensors["fc.weight"].T.contiguous()}),
            r"fc\.weight has shape \[192, 64\], expected \[64, 192\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_the_configuration(tiny_pair: Path, tmp_path: Path, change: Any, said: str) -> None:
    path = copy(tiny_pair, tmp_path)
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(ModelError, match=said):
        load(path)


@pytest.mark.parametrize("name", ["blk.weight", "blk.0.x.attn_q.weight"])
def test_a_tensor_without_a_place(tiny_pair: Path, name: str) -> None:
    found = read_header(tiny_pair / "drafter.gguf")
    other = replace(found, tensors=found.tensors | {name: next(iter(found.tensors.values()))})
    with pytest.raises(ModelError, match=f"unexpected tensor {name}"):
        check_gguf(other, config_of_gguf(other))
