"""Tensors of a GGUF that are not what its metadata says are refused before a kernel reads beyond them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from localdflash.backends.cuda.assembly import CudaSettings, load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.base.errors import ModelError
from tests.security.gguf_mutations import build, parse


def load(target: Path, drafter: Path | None = None) -> CudaPair:
    return load_pair(target, drafter, torch.device("cpu"), CudaSettings(context=64), REFERENCES)


@pytest.mark.parametrize(
    ("name", "ne", "said"),
    [
        ("blk.0.attn_output.weight", (64, 32), r"has shape \[32, 64\], not \[64, 64\]"),
        ("blk.5.attn_norm.weight", (32,), r"has shape \[32\], not \[64\]"),
        ("output_norm.weight", (), "is missing"),
        ("blk.3.ffn_up.weight", (), "is missing"),
    ],
)
def test_a_target(name: str, ne: tuple[int, ...], said: str, tiny_pair: Path, tmp_path: Path) -> None:
    path = changed(tiny_pair / "target.gguf", name, ne, tmp_path)
    with pytest.raises(ModelError, match=f"tensor {name} {said}"):
        load(path)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fc.weight", "fc.weight"),
        ("enc.output_norm.weight", "hidden_norm.weight"),
        ("blk.1.attn_k.weight", "layers.1.self_attn.k_proj.weight"),
    ],
)
def test_a_drafter(name: str, told: str, tiny_pair: Path, tmp_path: Path) -> None:
    for ne, said in {(32,): "has shape", (): "is missing"}.items():
        path = changed(tiny_pair / "drafter.gguf", name, ne, tmp_path)
        with pytest.raises(ModelError, match=f"tensor {told} {said}"):
            load(tiny_pair / "target.gguf", path)


def changed(path: Path, name: str, ne: tuple[int, ...], folder: Path) -> Path:
    """The file with another shape of a tensor, or without it."""
    parsed = parse(path.read_bytes())
    tensors = [replace(one, ne=ne) if one.name == name else one for one in parsed.tensors]
    kept = tuple(one for one in tensors if one.ne)
    assert kept != parsed.tensors
    out = folder / path.name
    out.write_bytes(build(replace(parsed, tensors=kept)))
    return out
