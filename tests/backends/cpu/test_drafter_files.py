"""Drafters of each configuration propose on the CPU engine what torch does with rounded activations."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.cpu_drafter import CpuDFlashDrafter, waiting_bytes
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_sizes import CpuSizes
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.base.errors import ModelError
from localdflash.models.memory.fit import AS_IT_IS
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights.gguf import read_header
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import round_inputs
from tests.support.random_drafters import (
    VARIANTS,
    YARN,
    config_of,
    random_weights,
    write_gguf,
    write_speculators,
    write_zlab,
)

pytestmark = needs_library
SEQUENTIAL = [name for name in VARIANTS if config_of(name, 500).kind != "dflash"]


def vocabulary_of(pair: Path) -> int:
    return len(read_header(pair / "target.gguf").require("tokenizer.ggml.tokens", list))


def check(path: Path, pair: Path, config: DFlashConfig, new_team: Callable[..., ThreadPool]) -> None:
    target, dflash = load_decoder(pair / "target.gguf"), load(path)
    round_inputs(dflash)
    reference = DFlashDrafter(dflash, target.embed_tokens.weight, target.lm_head.weight)
    engine = CpuTarget(open_target(pair / "target.gguf"), new_team(), taps=tuple(sorted(set(config.taps))))
    drafter = CpuDFlashDrafter(open_drafter(path), engine)
    right = slots = 0
    apart = []
    for length in range(1, 41):
        row = np.random.default_rng(length).standard_normal((1, 64 * len(config.taps))).astype(np.float32)
        for one in (drafter, reference):
            one.observe([0], row)
        found, wanted = drafter.propose(length, 99), reference.propose(length, 99)
        right += sum(a == b for a, b in zip(found.tokens, wanted.tokens, strict=True))
        slots += len(wanted)
        apart += [abs(a / b - 1) for a, b in zip(found.confidence, wanted.confidence, strict=True)]
    assert right >= 0.9 * slots  # random weights give near ties
    assert np.median(apart) < 0.02


@pytest.mark.parametrize("variant", VARIANTS)
def test_gguf(variant: str, tiny_pair: Path, tmp_path: Path, new_team: Callable[..., ThreadPool]) -> None:
    config = config_of(variant, vocabulary_of(tiny_pair))
    path = write_gguf(tmp_path / "d.gguf", config, random_weights(config), tiny_pair / "target.gguf")
    check(path, tiny_pair, config, new_team)


@pytest.mark.parametrize("variant", ["own embedding and head", "reduced vocabulary", "eight taps", *SEQUENTIAL[:-1]])
def test_speculators(variant: str, tiny_pair: Path, tmp_path: Path, new_team: Callable[..., ThreadPool]) -> None:
    config = config_of(variant, vocabulary_of(tiny_pair))
    check(write_speculators(tmp_path, config, random_weights(config)), tiny_pair, config, new_team)


def test_biases_and_yarn(tiny_pair: Path, tmp_path: Path, new_team: Callable[..., ThreadPool]) -> None:
    """Those of drafters for gpt-oss."""
    config = config_of("full", vocabulary_of(tiny_pair))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    scaling: dict[str, Any] = YARN | {"rope_type": "yarn", "truncate": False}
    path = write_zlab(tmp_path, config, random_weights(config), rope_scaling=scaling)
    assert load(path).config.decoder.rope_magnitude > 1
    check(path, tiny_pair, config, new_team)


@pytest.mark.parametrize("variant", ["own embedding and head", "reduced vocabulary", *SEQUENTIAL])
@pytest.mark.parametrize("bits", [8, 4])
def test_what_it_takes_is_planned(
    variant: str, bits: int, tiny_pair: Path, tmp_path: Path, new_team: Callable[..., ThreadPool]
) -> None:
    """Of safetensors, whose configuration alone is read."""
    config = config_of(variant, vocabulary_of(tiny_pair))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    write = write_speculators if config.short else write_zlab
    path = write(tmp_path, config, random_weights(config))
    engine = CpuTarget(open_target(tiny_pair / "target.gguf"), new_team(2), taps=(1, 3, 4))
    drafter = CpuDFlashDrafter(open_drafter(path, bits=bits), engine)
    sizes = CpuSizes(tiny_pair / "target.gguf", path, 2, bits)
    parts = sizes.parts(engine.context, AS_IT_IS)
    assert (parts[DRAFTER], parts[DRAFTER_KV]) == (drafter.weight_bytes, drafter.cache.nbytes)
    scratch = engine.scratch_bytes + drafter.scratch_bytes + waiting_bytes(config, 64, engine.context)
    assert parts[SCRATCH] == pytest.approx(scratch, rel=0.01)


def test_a_confidence_head_without_a_bias(tiny_pair: Path, tmp_path: Path, new_team: Callable[..., ThreadPool]) -> None:
    config = config_of("DSpark that judges", vocabulary_of(tiny_pair))
    weights = random_weights(config)
    del weights["confidence_head.proj.bias"]
    check(write_zlab(tmp_path, config, weights), tiny_pair, config, new_team)


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("DSpark", "markov_head.markov_w2.weight"),
        ("DFlash 2", "candidate_selector.successor_codebook"),
        ("DFlash 2", "layers.1.mlp_conv.base_kernel"),
    ],
)
def test_a_missing_part_is_named(variant: str, name: str, tiny_pair: Path, tmp_path: Path) -> None:
    config = config_of(variant, vocabulary_of(tiny_pair))
    weights = random_weights(config)
    del weights[name]
    with pytest.raises(ModelError, match=f"{name} is missing"):
        open_drafter(write_zlab(tmp_path, config, weights))
