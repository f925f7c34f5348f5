"""Drafters of every configuration on the CUDA engine, against the torch drafter with the same weights.

In float32, with the references in place of kernels, a block is the same to the token; the kernels in Triton's
interpreter round activations to float16, so that their hidden states are compared too. What the engine cannot run is
refused by name before anything is loaded.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from localdflash.cuda.assembly import CudaSettings, check_drafter, load_pair
from localdflash.cuda.ops import KERNELS, REFERENCES, Ops
from localdflash.cuda.pair import CudaPair
from localdflash.cuda.sizes import CudaSizes
from localdflash.cuda.stepper import Way
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling_params import SamplingParams
from localdflash.errors import ModelError
from localdflash.kernels.state import CONTEXT, DRAFTED_BY, DRAFTER, LIVE
from localdflash.model.dflash_config import DFlashConfig
from localdflash.reference.dflash_files import load
from localdflash.reference.drafter import DFlashDrafter
from localdflash.reference.gguf_decoder import load_decoder
from localdflash.weights.gguf import read_header
from tests.support.random_drafters import VARIANTS, config_of, random_weights, write_gguf, write_zlab
from tests.support.tiny_models import SHAPE, write_target

CPU = torch.device("cpu")
TAPPED = {"six taps": (0, 1, 2, 3, 4, 6), "eight taps": (0, 1, 2, 3, 4, 5, 6, 7)}  # each once
BIASED = "biases and YaRN"  # as drafters of gpt-oss have them
EVERY = [*VARIANTS, BIASED, f"DFlash 2, {BIASED}"]
INTERPRETED = ["six taps", BIASED, "DSpark, reduced vocabulary", "DSpark behind the anchor"]
INTERPRETED += ["DFlash 2, scaled and capped logits", f"DFlash 2, {BIASED}"]
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}
ANCHOR = 11


@pytest.fixture(scope="module")
def target(tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of nine layers, with heads as the kernels have them, and as many tokens as the drafters'."""
    shape = replace(SHAPE, vocab_size=vocabulary_of(tiny_pair), hidden_size=64, num_hidden_layers=9)
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", shape)


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.cuda.assembly.measure", lambda _stepper, _runner, ways: dict.fromkeys(ways, 1.0))


def vocabulary_of(pair: Path) -> int:
    return len(read_header(pair / "target.gguf").require("tokenizer.ggml.tokens", list))


def shaped(variant: str, vocabulary: int) -> DFlashConfig:
    """A variant with heads as the kernels have them."""
    biased = BIASED in variant
    name = variant.removesuffix(BIASED).removesuffix(", ") or "full"
    config = config_of(name, vocabulary)
    decoder = replace(config.decoder, head_dim=64, attention_bias=biased)
    return replace(config, decoder=decoder, taps=TAPPED.get(name, config.taps))


def written(variant: str, pair: Path, folder: Path, **changes: Any) -> Path:
    """The GGUF of a variant: Q8_0 holds its numbers exactly, and so do planes."""
    config = shaped(variant, vocabulary_of(pair))
    changes = changes | (YARN if BIASED in variant else {})
    return write_gguf(folder / "drafter.gguf", config, random_weights(config), pair / "target.gguf", **changes)


def open_pair(target: Path, drafter: Path, ops: Ops) -> CudaPair:
    return load_pair(target, drafter, CPU, CudaSettings(context=128), ops)


@cache
def torch_drafter(target: Path, drafter: Path) -> DFlashDrafter:
    decoder = load_decoder(target)
    return DFlashDrafter(load(drafter), decoder.embed_tokens.weight, decoder.lm_head.weight)


def block(pair: CudaPair, taps: Tensor) -> list[int]:
    """What is proposed behind a context of these taps [n, width]."""
    stepper, length = pair.stepper, len(taps)
    assert stepper.block is not None
    stepper.block.ring.ring[:length] = taps / 16
    stepper.tokens[length] = ANCHOR
    stepper.state.zero_()
    stepper.state[CONTEXT] = length
    while int(stepper.state[DRAFTER]) < length:
        stepper.catch_up()
    stepper.fill_block(1)
    assert int(stepper.draft[0]) == ANCHOR
    assert int(stepper.state[DRAFTED_BY]) == 2
    return stepper.draft[1 : int(stepper.state[LIVE])].tolist()


def wanted(drafter: DFlashDrafter, taps: Tensor) -> Sequence[int]:
    drafter.rollback(0)
    drafter.observe([7] * len(taps), taps.numpy())
    return list(drafter.propose(ANCHOR, 99).tokens)


def random_taps(config: DFlashConfig, rows: int) -> Tensor:
    shape = rows, len(config.taps) * config.decoder.hidden_size
    return torch.from_numpy(np.random.default_rng(rows).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("variant", EVERY)
def test_blocks_are_those_of_the_torch_drafter(variant: str, target: Path, tiny_pair: Path, tmp_path: Path) -> None:
    path = written(variant, tiny_pair, tmp_path)
    pair, drafter = open_pair(target, path, REFERENCES), torch_drafter(target, path)
    for context in (1, 4, 23):
        taps = random_taps(drafter.model.config, context)
        found = block(pair, taps)
        assert len(found) == drafter.longest
        assert found == wanted(drafter, taps)


@pytest.mark.parametrize("variant", INTERPRETED)
def test_so_are_those_of_the_kernels(variant: str, target: Path, tiny_pair: Path, tmp_path: Path) -> None:
    path = written(variant, tiny_pair, tmp_path)
    kernels, drafter = open_pair(target, path, KERNELS), torch_drafter(target, path)
    taps = random_taps(drafter.model.config, 20)
    import time
    t=time.time()
    f=block(kernels, taps); print("TIME", variant, time.time()-t, f, wanted(drafter, taps))
    assert f == wanted(drafter, taps)
