"""Packed models contain every weight of the file in the right place."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.model_source import (
    LAYER_FIELDS,
    MIXTURE_FIELDS,
    check_drafter_file,
    check_target_file,
    map_drafter_names,
)
from localdflash.backends.cpu.packing import PackedMatrix
from localdflash.backends.reference import dflash_files
from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_file import config_of_file, key_of
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights import gguf as our_gguf
from localdflash.models.weights.ggml_types import GGMLType
from tests.backends.cpu.packed_models import (
    EXPERTS,
    HEAD_DIM,
    HIDDEN,
    Bytes,
    Tensors,
    dequantized,
    holds,
    target_tensors,
    write,
)
from tests.support.converted_models import case_of
from tests.support.gguf_files import random_blocks
from tests.support.random_drafters import config_of, random_weights, vocabulary_of, write_zlab


def check(part: Any, kind: GGMLType, raw: Bytes, what: str = "") -> None:
    """Assert that a matrix is packed and any other part is float32."""
    if isinstance(part, PackedMatrix):
        assert holds(part, kind, raw), what
    else:
        np.testing.assert_array_equal(part, dequantized(kind, raw), what)


def rotate_half(rows: Bytes) -> Bytes:
    """Return the rows of a `llama` file's q or k in rotate-half order."""
    turned = rows.copy()
    for row in range(len(rows)):
        head, channel = divmod(row, HEAD_DIM)
        half, pair = divmod(channel, HEAD_DIM // 2)
        turned[row] = rows[head * HEAD_DIM + 2 * pair + half]
    return turned


@pytest.mark.parametrize(
    ("architecture", "kind"), [("qwen3", GGMLType.Q8_0), ("qwen3moe", GGMLType.Q5_1), ("llama", GGMLType.Q3_K)]
)
def test_target_weights_are_packed_in_place(tmp_path: Path, architecture: str, kind: GGMLType) -> None:
    tensors = target_tensors(architecture, kind)
    path = write(tmp_path / "model.gguf", tensors, architecture)
    model = open_target(path)
    assert model.notice == ""
    assert model.config == decoder_config(our_gguf.read_header(path))
    assert "head" not in model.parts
    check(model.parts["embedding"], *tensors["token_embd.weight"])
    check(model.parts["norm"], *tensors["output_norm.weight"])
    names = MIXTURE_FIELDS if architecture == "qwen3moe" else LAYER_FIELDS
    for i, layer in enumerate(model.layers()):
        for theirs, ours in names.items():
            expected = tensors.get(f"blk.{i}.{theirs}.weight")
            if expected is None:
                assert architecture == "llama"
                assert ours not in layer
                continue
            if architecture == "llama" and ours in ("query", "key"):
                expected = expected[0], rotate_half(expected[1])
            check(layer[ours], *expected, ours)
        assert layer["gate"].experts == (EXPERTS if architecture == "qwen3moe" else 1)
        assert ("router" in layer) == (architecture == "qwen3moe")


@pytest.mark.parametrize(
    ("name", "bits"), [("drafter.gguf", 8), ("drafter.safetensors", 4), ("DSpark with confidence", 8), ("DFlash 2", 4)]
)
def test_drafter_weights_are_packed_in_place(tiny_pair: Path, tmp_path: Path, name: str, bits: int) -> None:
    path = tiny_pair / name if name.startswith("drafter") else write_random(tmp_path, name, tiny_pair)
    state = dflash_files.load(path).state_dict()
    for _ in range(2):  # packed now, then from the cache
        packed, left = open_drafter(path, bits=bits), {key: value.numpy() for key, value in state.items()}
        assert packed.config == config_of_file(path)
        for theirs, ours in map_drafter_names(packed.config).items():
            part, expected = packed.parts.get(ours), left.pop(key_of(theirs), None)
            if expected is None:
                assert part is None
            elif isinstance(part, PackedMatrix):
                assert holds(part, GGMLType.F32, expected.view(np.uint8), bits == 4), ours
            else:
                np.testing.assert_array_equal(part, expected)
        assert not left


def write_random(folder: Path, variant: str, pair: Path) -> Path:
    config = config_of(variant, vocabulary_of(pair / "target.gguf"))
    return write_zlab(folder, config, random_weights(config))


@pytest.mark.parametrize(
    ("name", "start", "part"),
    [("blk.1.ffn_up.weight", 34, "a scale is not"), ("blk.0.attn_norm.weight", 4, "a number is not")],
)
def test_non_finite_tensor_is_named(tmp_path: Path, name: str, start: int, part: str) -> None:
    tensors = target_tensors()
    raw = tensors[name][1].copy()
    raw.reshape(-1)[start : start + 4] = 0xFF
    path = write(tmp_path / "model.gguf", tensors | {name: (tensors[name][0], raw)})
    with pytest.raises(ModelError, match=f"{path}: tensor {name}: {part}"):
        open_target(path)


def test_opening_a_model_imports_no_torch(tiny_pair: Path, tmp_path: Path) -> None:
    with_factors = case_of("llama 3.1").write(tmp_path / "llama31.gguf")  # its RoPE factors are a tensor
    code = (
        "import sys; from pathlib import Path; from localdflash.backends.cpu.binding import open_drafter, open_target;"
        f"folder = Path({str(tiny_pair)!r});"
        "open_target(folder / 'target.gguf'); open_drafter(folder / 'drafter.gguf');"
        f"open_target(Path({str(with_factors)!r}));"
        "open_drafter(folder / 'drafter.safetensors');"
        "print(*{'torch', 'llama_cpp', 'gguf', 'safetensors'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "\n"


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_target_file(path)
    assert "\n" not in str(caught.value)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def floats(*shape: int) -> tuple[GGMLType, Any]:
    return GGMLType.F32, random_blocks(np.random.default_rng(0), "F32", shape)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"blk.0.attn_q.bias": floats(32)}, ["unexpected tensor blk.0.attn_q.bias", "--backend llama.cpp"]),
        ({"blk.2.attn_q.weight": floats(32)}, ["unexpected tensor blk.2.attn_q.weight"]),
        ({"blk.0.attn_q.weight": floats(64, HIDDEN)}, [f"blk.0.attn_q.weight has shape [64, {HIDDEN}] (expected"]),
        ({"output_norm.weight": floats(2, HIDDEN // 2)}, ["tensor output_norm.weight has shape [2, 128] (expected"]),
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
def test_tensor_with_wrong_shape_is_named(tmp_path: Path, changes: Tensors, parts: list[str]) -> None:
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
def test_unsupported_model_is_refused(tmp_path: Path, architecture: str, numbers: dict[str, Any], part: str) -> None:
    refused(write(tmp_path / "model.gguf", target_tensors(), architecture, **numbers), part)


@pytest.mark.parametrize(
    ("name", "tensor", "part"),
    [
        ("layers.1.mlp.up_proj.weight", None, "layers.1.mlp.up_proj.weight is missing"),
        ("norm.weight", torch.zeros(32), "norm.weight has shape [32] (expected [64])"),
        ("fc.weight", torch.zeros(64, 192, dtype=torch.int8), "fc.weight is I8"),
    ],
)
def test_drafter_with_wrong_tensors_is_refused(
    tiny_pair: Path, tmp_path: Path, name: str, tensor: torch.Tensor | None, part: str
) -> None:
    shutil.copy(tiny_pair / "config.json", tmp_path)
    drafter, tensors = tmp_path / "drafter.safetensors", load_file(tiny_pair / "drafter.safetensors")
    tensors.pop(name, None)
    save_file(tensors if tensor is None else tensors | {name: tensor}, drafter)
    with pytest.raises(ModelError) as caught:
        check_drafter_file(drafter)
    assert f"{drafter}: tensor {part}" in str(caught.value)
