"""Drafters of every configuration on the CUDA engine, against the torch drafter with the same weights.

Blocks equal token by token, in float32 with the references in place of kernels and with the kernels in Triton's
interpreter. Unsupported drafters are refused by name before anything is loaded.
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

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.cuda_sizes import CudaSizes
from localdflash.backends.cuda.ops import KERNELS, REFERENCES, Ops
from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.base.errors import ModelError
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling_params import SamplingParams
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTED_BY, DRAFTER, LIVE
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights.gguf import read_header
from tests.support.cuda_pairs import answer, load_on_cpu
from tests.support.random_drafters import VARIANTS, config_of, random_weights, write_gguf
from tests.support.tiny_models import EXPERTS, SHAPE, write_drafter, write_target

TAPPED = {"six taps": (0, 1, 2, 3, 4, 6), "eight taps": (0, 1, 2, 3, 4, 5, 6, 7)}  # each once
BIASED = "biases and YaRN"  # as drafters of gpt-oss have them
EVERY = [*VARIANTS, BIASED, f"DFlash 2, {BIASED}"]
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}
ANCHOR = 11


@pytest.fixture(scope="module")
def target(tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a target of nine layers with the kernels' head size and the drafters' vocabulary."""
    shape = replace(SHAPE, vocab_size=vocabulary_of(tiny_pair), hidden_size=64, num_hidden_layers=9)
    return write_target(tmp_path_factory.mktemp("target") / "target.gguf", shape)


def vocabulary_of(pair: Path) -> int:
    return len(read_header(pair / "target.gguf").require("tokenizer.ggml.tokens", list))


def shaped(variant: str, vocabulary: int) -> DFlashConfig:
    """Return a variant with the kernels' head size."""
    biased = BIASED in variant
    name = variant.removesuffix(BIASED).removesuffix(", ") or "full"
    config = config_of(name, vocabulary)
    decoder = replace(config.decoder, head_dim=64, attention_bias=biased)
    return replace(config, decoder=decoder, taps=TAPPED.get(name, config.taps))


def written(variant: str, pair: Path, folder: Path, **changes: Any) -> Path:
    """Write the GGUF of a variant; Q8_0 and planes represent its weights exactly."""
    config = shaped(variant, vocabulary_of(pair))
    changes = changes | (YARN if BIASED in variant else {})
    return write_gguf(folder / "drafter.gguf", config, random_weights(config), pair / "target.gguf", **changes)


def open_pair(target: Path, drafter: Path, ops: Ops) -> CudaPair:
    return load_on_cpu(target, drafter, ops, context=128)


@cache
def torch_drafter(target: Path, drafter: Path) -> DFlashDrafter:
    decoder = load_decoder(target)
    return DFlashDrafter(load(drafter), decoder.embed_tokens.weight, decoder.lm_head.weight)


def block(pair: CudaPair, taps: Tensor) -> list[int]:
    """Return the tokens proposed after a context of these features [n, width]."""
    stepper, length = pair.stepper, len(taps)
    assert stepper.drafter
    stepper.drafter.ring.ring[:length] = taps / 16
    stepper.tokens[length] = ANCHOR
    stepper.state.zero_()
    stepper.state[CONTEXT] = length
    while int(stepper.state[DRAFTER]) < length:
        stepper.catch_up()
    stepper.draft_block(1)
    assert int(stepper.draft[0]) == ANCHOR
    assert int(stepper.state[DRAFTED_BY]) == 2
    return stepper.draft[1 : int(stepper.state[LIVE])].tolist()


def expected_block(drafter: DFlashDrafter, taps: Tensor) -> Sequence[int]:
    drafter.rollback(0)
    drafter.observe([7] * len(taps), taps.numpy())
    return list(drafter.propose(ANCHOR, 99).tokens)


def random_taps(config: DFlashConfig, rows: int) -> Tensor:
    shape = rows, len(config.taps) * config.decoder.hidden_size
    return torch.from_numpy(np.random.default_rng(rows).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize(
    "ops", [REFERENCES, pytest.param(KERNELS, marks=pytest.mark.nightly)], ids=["torch", "kernels"]
)
@pytest.mark.parametrize("variant", EVERY)
def test_blocks_are_those_of_the_torch_drafter(
    variant: str, ops: Ops, target: Path, tiny_pair: Path, tmp_path: Path
) -> None:
    path = written(variant, tiny_pair, tmp_path)
    pair, drafter = open_pair(target, path, ops), torch_drafter(target, path)
    for context in (1, 23) if ops is REFERENCES else (20,):
        taps = random_taps(drafter.model.config, context)
        actual = block(pair, taps)
        assert len(actual) == drafter.max_draft_tokens
        assert actual == expected_block(drafter, taps)


@pytest.mark.parametrize(
    "ops", [REFERENCES, pytest.param(KERNELS, marks=pytest.mark.nightly)], ids=["torch", "kernels"]
)
@pytest.mark.parametrize(("variant", "temperature"), [("DSpark, reduced vocabulary", 0.0), ("DFlash 2", 1.0)])
def test_every_drafter_is_lossless(
    variant: str, temperature: float, ops: Ops, target: Path, tiny_pair: Path, tmp_path: Path
) -> None:
    pair, count = open_pair(target, written(variant, tiny_pair, tmp_path), ops), 8 if ops is REFERENCES else 3
    ids, params = [3, 14, 15, 92, 65, 3, 14, 15], SamplingParams(temperature=temperature, seed=5)
    drafting, request = pair.with_mode("draft"), Request(ids, count, params)
    drafting.forget()
    drafted = [token for step in generate(drafting, request) for token in step.tokens]
    assert drafted == answer(pair.with_mode("plain"), ids, count, params)
    assert request.stats.steps_by_drafter["dflash"] > 0


# Planned and refused


def test_unsupported_block_and_head_sizes_are_refused_before_loading(
    target: Path, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = written("full", tiny_pair, tmp_path, block_size=32)
    with pytest.raises(ModelError, match=r"drafter\.gguf: .*blocks of 32"):
        CudaSizes(target, long)
    monkeypatch.setattr("localdflash.backends.cuda.assembly.load_target", None)
    config = config_of("full", vocabulary_of(tiny_pair))
    path = write_gguf(tmp_path / "d.gguf", config, random_weights(config), tiny_pair / "target.gguf")
    with pytest.raises(ModelError, match=r"d\.gguf: .*heads of 32.* 64 and 128"):
        open_pair(target, path, KERNELS)
    with pytest.raises(ModelError, match=r"target\.gguf: .*heads of 32"):
        open_pair(tiny_pair / "target.gguf", path, KERNELS)


PROMPT = [7, 8, 9, 10, 11, 7, 8, 9, 10]


@pytest.fixture(
    scope="module",
    params=["dense f16", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("dense int8", "experts"))],
)
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[CudaPair, CudaPair]:
    """Load a pair with the kernels, and the same in float32."""
    folder = tmp_path_factory.mktemp("tiny")
    shape = replace(SHAPE, **EXPERTS) if request.param == "experts" else SHAPE
    target, drafter = write_target(folder / "target.gguf", shape), write_drafter(folder, shape)
    kv = "int8" if "int8" in request.param else "f16"
    kernels, exact = (load_on_cpu(target, drafter, ops, context=256, kv=kv) for ops in (KERNELS, REFERENCES))
    return kernels, exact


@pytest.mark.timeout(300)
def test_hidden_states_and_drafts_are_those_of_float32(pairs: tuple[CudaPair, CudaPair]) -> None:
    """Values are compared before tokens are chosen, since near ties could hide or fake a difference."""
    for pair in pairs:
        pair.forget()
        pair.prefill(PROMPT)
        pair.stepper.draft.copy_(torch.arange(20, 36))
        pair.stepper.state[2] = 16
        pair.stepper.forward(2)
    ours, exact = (pair.stepper.stack for pair in pairs)
    assert int(pairs[0].stepper.state[CONTEXT]) == len(PROMPT) - 1
    scale = exact.buffers.x.abs().max()
    tolerance = 0.06 if pairs[0].stepper.cache.k.dtype == torch.int8 else 0.02
    assert (ours.buffers.x - exact.buffers.x).abs().max() < tolerance * scale
    for pair in pairs:
        pair.stepper.catch_up()
        pair.stepper.draft_block(2)
    drafts = [pair.stepper.drafter.stack.buffers.x for pair in pairs if pair.stepper.drafter]
    assert (drafts[0] - drafts[1])[:8].abs().max() < tolerance * drafts[1][:8].abs().max()
