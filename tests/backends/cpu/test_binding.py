"""A packed model holds the file's weights in their places."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.model_source import LAYER_FIELDS, MIXTURE_FIELDS, map_drafter_names
from localdflash.backends.cpu.packing import Kind, PackedMatrix
from localdflash.backends.reference import dflash_files
from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_file import config_of_file, key_of
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights import gguf as our_gguf
from localdflash.models.weights.ggml_types import GGMLType
from tests.backends.cpu.packed_models import EXPERTS, HEAD_DIM, Bytes, dequantized, holds, target_tensors, write
from tests.support.random_drafters import config_of, random_weights, write_zlab


def check(part: Any, kind: GGMLType, raw: Bytes, what: str = "") -> None:
    """A matrix is packed; the rest is in float32."""
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
def test_every_weight_of_a_target_is_in_its_place(tmp_path: Path, architecture: str, kind: GGMLType) -> None:
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
            wanted = tensors.get(f"blk.{i}.{theirs}.weight")
            if wanted is None:
                assert architecture == "llama"
                assert ours not in layer
                continue
            if architecture == "llama" and ours in ("query", "key"):
                wanted = wanted[0], rotate_half(wanted[1])
            check(layer[ours], *wanted, ours)
        assert layer["gate"].experts == (EXPERTS if architecture == "qwen3moe" else 1)
        assert ("router" in layer) == (architecture == "qwen3moe")


@pytest.mark.parametrize(
    ("name", "bits"), [("drafter.gguf", 8), ("drafter.safetensors", 4), ("DSpark that judges", 8), ("DFlash 2", 4)]
)
def test_every_weight_of_a_drafter_is_in_its_place(tiny_pair: Path, tmp_path: Path, name: str, bits: int) -> None:
    kind = Kind.Q4_0 if bits == 4 else Kind.Q8_0
    path = tiny_pair / name if name.startswith("drafter") else write_random(tmp_path, name, tiny_pair)
    state = dflash_files.load(path).state_dict()
    for _ in range(2):  # packed now, then from the cache
        packed, left = open_drafter(path, bits=bits), {key: value.numpy() for key, value in state.items()}
        assert packed.config == config_of_file(path)
        for theirs, ours in map_drafter_names(packed.config).items():
            part, wanted = packed.parts.get(ours), left.pop(key_of(theirs), None)
            if wanted is None:
                assert part is None
            elif isinstance(part, PackedMatrix):
                assert holds(part, GGMLType.F32, wanted.view(np.uint8), kind), ours
            else:
                np.testing.assert_array_equal(part, wanted)
        assert not left


def write_random(folder: Path, variant: str, pair: Path) -> Path:
    config = config_of(variant, len(our_gguf.read_header(pair / "target.gguf").require("tokenizer.ggml.tokens", list)))
    return write_zlab(folder, config, random_weights(config))


@pytest.mark.parametrize(
    ("name", "start", "part"),
    [("blk.1.ffn_up.weight", 34, "a scale is not"), ("blk.0.attn_norm.weight", 4, "a number is not")],
)
def test_a_tensor_with_a_number_that_is_not_finite_is_named(tmp_path: Path, name: str, start: int, part: str) -> None:
    tensors = target_tensors()
    raw = tensors[name][1].copy()
    raw.reshape(-1)[start : start + 4] = 0xFF
    path = write(tmp_path / "model.gguf", tensors | {name: (tensors[name][0], raw)})
    with pytest.raises(ModelError, match=f"{path}: tensor {name}: {part}"):
        open_target(path)


def test_opening_a_model_imports_no_torch(tiny_pair: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from localdflash.backends.cpu.binding import open_drafter, open_target;"
        f"folder = Path({str(tiny_pair)!r});"
        "open_target(folder / 'target.gguf'); open_drafter(folder / 'drafter.gguf');"
        "open_drafter(folder / 'drafter.safetensors');"
        "print(*{'torch', 'llama_cpp', 'gguf', 'safetensors'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "\n"
