"""Decoders from GGUF files: Hugging Face's logits for every architecture, and refusals that name the field."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.base.errors import ModelError, UsageError
from localdflash.models.shapes.decoder_config import DecoderConfig
from tests.support.converted_models import CONTEXT, MODELS, VOCABULARY, Case, case_of, ids_of
from tests.support.lossless import assert_lossless

known_case = cache(case_of)


def changed(name: str, numbers: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> Case:
    """Return a model with other metadata or tensors; None removes an entry."""
    case = known_case(name)
    its = {key: value for key, value in (case.numbers | (numbers or {})).items() if value is not None}
    present = {key: value for key, value in (case.tensors | (tensors or {})).items() if value is not None}
    return replace(case, numbers=its, tensors=present)


@torch.inference_mode()
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_hidden_states_are_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    kind = {"qwen3": "F32", "llama": "Q4_1"}.get(name, "Q8_0")
    case = case_of(name, kind)
    ours = load_decoder(case.write(tmp_path / "model.gguf", kind))
    ids = torch.tensor([ids_of(120), ids_of(120, seed=1)])
    expected = case.model(ids, output_hidden_states=True)
    hidden, taps = ours(ids, torch.arange(120), causal, (0, 1))
    assert float(expected.logits.std()) > 0.5  # logits are not all near zero
    torch.testing.assert_close(ours.logits(hidden), expected.logits, atol=1e-4, rtol=1e-4)
    for tap, values in zip((0, 1), taps, strict=True):
        torch.testing.assert_close(values, expected.hidden_states[tap + 1], atol=1e-4, rtol=1e-4)
    assert ours.config.context_length == CONTEXT
    assert not ours.training
    assert not any(parameter.requires_grad for parameter in ours.parameters())


@pytest.mark.parametrize("name", ["qwen3moe", "llama 3.1"])
def test_is_lossless(name: str, tmp_path: Path) -> None:
    target = TorchTarget(load_decoder(known_case(name).write(tmp_path / "model.gguf")))
    assert_lossless(target, ids_of(16 + 17), (2, 16, 17), lengths=(16,))


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


ELSEWHERE = "use llama.cpp"
NO_HEAD_SIZE = dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"))


UNSUPPORTED: tuple[tuple[str, dict[str, Any], list[str]], ...] = (
    ("qwen3", {"rope.scaling.type": "yarn"}, ["scaled RoPE", ELSEWHERE]),
    ("qwen3", {"rope.scaling.factor": 4.0}, ["scaled RoPE", ELSEWHERE]),  # llama.cpp applies it without a type too
    ("qwen3", {"rope.scale_linear": 4.0}, ["scaled RoPE"]),
    ("qwen3", {"rope.scaling.attn_factor": 4.0}, ["scaled RoPE"]),
    ("qwen3", {"rope.dimension_count": 16}, ["partial RoPE", ELSEWHERE]),
    ("qwen3", {"attention.head_count_kv": 3}, ["4 heads", "3 key-value heads"]),
    ("qwen3", {"block_count": 4}, ["layers.3."]),
    ("qwen3", {"rope.freq_base": None}, ["qwen3.rope.freq_base is missing"]),
    *(("qwen3", {"embedding_length": value}, ["embedding_length"]) for value in ("4", [4, 4], 4.0, 0, 2**32 - 1)),
    *(("qwen3", {"rope.freq_base": float(value)}, ["rope.freq_base"]) for value in ("nan", "inf", "0", "-1")),
    ("qwen3moe", {"expert_feed_forward_length": None}, ["qwen3moe.expert_feed_forward_length is missing"]),
    ("qwen3moe", {"expert_used_count": 9}, ["expert_used_count is 9", "expert_count is 8"]),
    ("llama", {"expert_count": 8}, ["mixture of experts", ELSEWHERE]),
    ("llama", NO_HEAD_SIZE, ["attn_q.weight", "[128, 64]", "[64, 64]"]),  # heads of hidden size / 4
)
MISFITS: tuple[tuple[str, str, Any, list[str]], ...] = (
    ("qwen3", "blk.1.ffn_down.weight", None, ["layers.1.mlp.down_proj.weight"]),
    ("qwen3moe", "blk.1.ffn_up_exps.weight", None, ["layers.1.mlp.experts.up_proj.weight"]),
    ("qwen3", "rope_freqs.weight", zeros(64), ["tensor rope_freqs.weight", ELSEWHERE]),
    ("qwen3", "blk.0.attn_q.bias", zeros(64), ["tensor blk.0.attn_q.bias", ELSEWHERE]),
    ("qwen3", "blk.3.attn_q.weight", zeros(64), ["tensor blk.3.attn_q.weight", ELSEWHERE]),
    ("qwen3", "blk.0.attn_k.weight", zeros(128, 64), ["tensor blk.0.attn_k.weight", "[128, 64]", "[64, 64]"]),
    ("qwen3", "output_norm.weight", zeros(32), ["tensor output_norm.weight", "[32]", "[64]"]),
    ("llama 3.1", "rope_freqs.weight", zeros(32) + 1, ["rope_freqs.weight", "[32]", "[16]"]),
    ("llama 3.1", "rope_freqs.weight", zeros(16), ["rope_freqs.weight", "positive"]),
    ("llama 3.1", "rope_freqs.weight", zeros(16) + np.nan, ["rope_freqs.weight", "positive"]),
)


def test_unsupported_metadata_and_tensors_are_named(tmp_path: Path) -> None:
    for name, numbers, words in UNSUPPORTED:
        refused(changed(name, numbers).write(tmp_path / "model.gguf"), words)
    for name, tensor, values, words in MISFITS:
        refused(changed(name, tensors={tensor: values}).write(tmp_path / "model.gguf"), words)


def refused(path: Path, words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        load_decoder(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.fixture(scope="module")
def model() -> Decoder:
    """Return a decoder of random weights for 160 tokens."""
    decoder = Decoder(DecoderConfig(VOCABULARY, 32, 3, 4, 2, 16, 64, context_length=160)).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in decoder.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return decoder


def test_every_width_is_lossless(model: Decoder) -> None:
    target = TorchTarget(model, taps=(0, 1))
    assert_lossless(target, ids_of(97 + 33), range(1, 34), chunks=(1, 16, 17), lengths=(0, 1, 50))


def test_invalid_contexts_are_refused(model: Decoder) -> None:
    for context in (7, 161, -1):
        with pytest.raises(UsageError, match=f"{context} tokens.*8 to 160"):
            TorchTarget(model, context)
