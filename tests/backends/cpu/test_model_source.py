"""Model files that the CPU engine refuses, in one line that names the file and the tensor, before a weight is read."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from localdflash.backends.cpu.model_source import check_drafter_file, check_target_file
from localdflash.base.errors import ModelError
from localdflash.models.weights.ggml_types import GGMLType
from tests.backends.cpu.packed_models import HIDDEN, Tensors, random_blocks, target_tensors, write


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_target_file(path)
    assert "\n" not in str(caught.value)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def floats(*shape: int) -> tuple[GGMLType, Any]:
    return GGMLType.F32, random_blocks(np.random.default_rng(0), GGMLType.F32, shape)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"blk.0.attn_q.bias": floats(32)}, ["tensor blk.0.attn_q.bias has no place", "--backend llama.cpp"]),
        ({"blk.2.attn_q.weight": floats(32)}, ["tensor blk.2.attn_q.weight has no place"]),
        ({"blk.0.attn_q.weight": floats(64, HIDDEN)}, [f"blk.0.attn_q.weight has shape [64, {HIDDEN}], not"]),
        ({"output_norm.weight": floats(2, HIDDEN // 2)}, ["tensor output_norm.weight has shape [2, 128], not"]),
        (
            {"output_norm.weight": (GGMLType.Q8_0, np.zeros(HIDDEN // 32 * 34, np.uint8))},
            ["tensor output_norm.weight is Q8_0"],
        ),
        (
            {"blk.1.attn_q.weight": (GGMLType.IQ3_S, np.zeros((128, HIDDEN // 256 * 110), np.uint8))},
            ["tensor blk.1.attn_q.weight is IQ3_S", "--backend llama.cpp"],
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path, changes: Tensors, parts: list[str]) -> None:
    refused(write(tmp_path / "model.gguf", target_tensors() | changes), *parts)


@pytest.mark.parametrize(
    ("architecture", "numbers", "part"),
    [
        ("gemma3", {}, "'gemma3'"),
        ("qwen3", {"rope.scaling.type": "yarn"}, "scaled RoPE"),
        ("qwen3", {"attention.head_count_kv": 3}, "3 key-value heads"),
        ("qwen3", {"block_count": 3}, "blk.2.attn_norm.weight is missing"),
    ],
)
def test_a_model_that_would_run_wrong_is_refused(
    tmp_path: Path, architecture: str, numbers: dict[str, Any], part: str
) -> None:
    refused(write(tmp_path / "model.gguf", target_tensors(), architecture, **numbers), part)


@pytest.mark.parametrize(
    ("name", "tensor", "part"),
    [
        ("layers.1.mlp.up_proj.weight", None, "layers.1.mlp.up_proj.weight is missing"),
        ("norm.weight", torch.zeros(32), "norm.weight has shape [32], not [64]"),
        ("fc.weight", torch.zeros(64, 192, dtype=torch.int8), "fc.weight is I8"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(
    tiny_pair: Path, tmp_path: Path, name: str, tensor: torch.Tensor | None, part: str
) -> None:
    shutil.copy(tiny_pair / "config.json", tmp_path)
    drafter, tensors = tmp_path / "drafter.safetensors", load_file(tiny_pair / "drafter.safetensors")
    tensors.pop(name, None)
    save_file(tensors if tensor is None else tensors | {name: tensor}, drafter)
    with pytest.raises(ModelError) as caught:
        check_drafter_file(drafter)
    assert f"{drafter}: tensor {part}" in str(caught.value)
