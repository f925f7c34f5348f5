"""Drafters from files: tensors as they were written, and GGUF metadata honoured or refused by name."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from localdflash.backends.reference.dflash_files import check_gguf, load
from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_file import config_of_gguf
from localdflash.models.weights.gguf import read_header


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
