"""What the CPU engine refuses, in one line that names the file and the tensor, before a weight is read."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from localdflash.backends.cpu.model_source import drafter_source, target_source
from localdflash.base.errors import ModelError
from localdflash.models.weights.ggml_types import GGMLType
from tests.backends.cpu.packed_models import HIDDEN, random_blocks, target_tensors, write


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        target_source(path)
    assert "\n" not in str(caught.value)
    for part in (str(path), *parts):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["token_embd", "output_norm", "blk.1.attn_q", "blk.0.attn_k_norm", "blk.1.ffn_up"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = target_tensors()
    del tensors[f"{name}.weight"]
    refused(write(tmp_path / "model.gguf", tensors), f"tensor {name}.weight is missing")


@pytest.mark.parametrize("name", ["ffn_gate_inp", "ffn_up_exps"])
def test_a_missing_part_of_a_mixture_is_named(tmp_path: Path, name: str) -> None:
    tensors = target_tensors("qwen3moe")
    del tensors[f"blk.1.{name}.weight"]
    refused(write(tmp_path / "model.gguf", tensors, "qwen3moe"), f"tensor blk.1.{name}.weight is missing")


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.2.attn_q.weight", "blk.0.ffn_gate_exps.weight", "odd"])
def test_a_tensor_without_a_place_is_named(tmp_path: Path, name: str) -> None:
    tensors = target_tensors() | {name: (GGMLType.F32, np.zeros(128, np.uint8))}
    refused(write(tmp_path / "model.gguf", tensors), f"tensor {name} has no place", "--backend llama.cpp")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("blk.0.attn_q", (64, HIDDEN)), ("blk.1.ffn_down", (HIDDEN, 256)), ("output_norm", (2, HIDDEN // 2))],
)
def test_another_shape_is_named(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    raw = random_blocks(np.random.default_rng(0), GGMLType.F32, shape)
    tensors = target_tensors() | {f"{name}.weight": (GGMLType.F32, raw)}
    refused(write(tmp_path / "model.gguf", tensors), f"tensor {name}.weight has shape {list(shape)}, not")


@pytest.mark.parametrize("kind", [GGMLType.IQ2_XS, GGMLType.IQ3_S, GGMLType.TQ1_0, GGMLType.NVFP4])
def test_a_type_that_no_kernel_reads_is_named(tmp_path: Path, kind: GGMLType) -> None:
    raw = np.zeros((128, HIDDEN // kind.block_weights * kind.block_bytes), np.uint8)
    tensors = target_tensors() | {"blk.1.attn_q.weight": (kind, raw)}
    expected = f"tensor blk.1.attn_q.weight is {kind.name}"
    refused(write(tmp_path / "model.gguf", tensors), expected, "--backend llama.cpp")


def test_a_quantized_norm_is_refused(tmp_path: Path) -> None:
    raw = random_blocks(np.random.default_rng(0), GGMLType.Q8_0, (HIDDEN,))
    tensors = target_tensors() | {"output_norm.weight": (GGMLType.Q8_0, raw)}
    refused(write(tmp_path / "model.gguf", tensors), "tensor output_norm.weight is Q8_0")


def test_rows_of_odd_length_are_refused(tmp_path: Path) -> None:
    random, tensors = np.random.default_rng(0), target_tensors()
    for i in range(2):
        for name, shape in (("ffn_gate", (40, HIDDEN)), ("ffn_up", (40, HIDDEN)), ("ffn_down", (HIDDEN, 40))):
            tensors[f"blk.{i}.{name}.weight"] = GGMLType.F32, random_blocks(random, GGMLType.F32, shape)
    path = write(tmp_path / "model.gguf", tensors, feed_forward_length=40)
    refused(path, "tensor blk.0.ffn_down.weight has rows of 40 weights")


@pytest.mark.parametrize(
    ("architecture", "numbers", "part"),
    [
        ("gemma3", {}, "'gemma3'"),
        ("qwen3", {"rope.scaling.type": "yarn"}, "scaled RoPE"),
        ("qwen3", {"attention.head_count_kv": 3}, "3 key-value heads"),
        ("qwen3", {"attention.key_length": 24}, "24 channels"),
        ("qwen3", {"block_count": 3}, "blk.2.attn_norm.weight is missing"),
    ],
)
def test_a_model_that_would_run_wrong_is_refused(
    tmp_path: Path, architecture: str, numbers: dict[str, Any], part: str
) -> None:
    refused(write(tmp_path / "model.gguf", target_tensors(), architecture, **numbers), part)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf", target_tensors()).read_bytes()
    path = tmp_path / "model.gguf"
    for size in (0, 3, 8, 100, 1000, len(whole) // 2, len(whole) - 33):
        path.write_bytes(whole[:size])
        refused(path)


@pytest.fixture
def drafter(tiny_pair: Path, tmp_path: Path) -> Path:
    """A copy of a drafter in safetensors, to be broken."""
    for name in ("drafter.safetensors", "config.json"):
        shutil.copy(tiny_pair / name, tmp_path)
    return tmp_path / "drafter.safetensors"


@pytest.mark.parametrize(
    ("name", "tensor", "part"),
    [
        ("fc.weight", None, "fc.weight is missing"),
        ("layers.1.mlp.up_proj.weight", None, "layers.1.mlp.up_proj.weight is missing"),
        ("layers.0.self_attn.q_proj.bias", torch.zeros(64), "layers.0.self_attn.q_proj.bias has no place"),
        ("norm.weight", torch.zeros(32), "norm.weight has shape [32], not [64]"),
        ("fc.weight", torch.zeros(64, 192, dtype=torch.int8), "fc.weight is I8"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(
    drafter: Path, name: str, tensor: torch.Tensor | None, part: str
) -> None:
    tensors = load_file(drafter)
    tensors.pop(name, None)
    save_file(tensors if tensor is None else tensors | {name: tensor}, drafter)
    with pytest.raises(ModelError) as caught:
        drafter_source(drafter)
    assert f"{drafter}: tensor {part}" in str(caught.value)


def test_a_target_is_no_drafter_and_a_drafter_no_target(tiny_pair: Path) -> None:
    refused(tiny_pair / "drafter.gguf", "'dflash'")
    with pytest.raises(ModelError, match="'qwen3' is no DFlash drafter"):
        drafter_source(tiny_pair / "target.gguf")
