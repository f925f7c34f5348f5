"""Hugging Face folders that cannot be used: one line says which file or tensor, and what to do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from localdflash.backends.cuda.assembly import CudaSettings, load_pair
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.base.errors import ModelError
from tests.support.checkpoint_folders import (
    HIDDEN,
    INNER,
    QWEN3,
    Case,
    gptq,
    make,
    write,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sound") / "folder", QWEN3, make(QWEN3, gptq), shards=2)


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "folder"))


def shard(folder: Path, number: int = 1) -> Path:
    return folder / f"model-{number:05}-of-00002.safetensors"


def change(folder: Path, name: str, tensor: Tensor | None) -> None:
    """Replace, add or remove one tensor."""
    for number in (1, 2):
        tensors = load_file(shard(folder, number))
        if name in tensors or (number == 2 and tensor is not None):
            tensors.pop(name, None)
            save_file(tensors | ({} if tensor is None else {name: tensor}), shard(folder, number))
            return
    raise AssertionError(name)


def change_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


UP, NORM = "model.layers.1.mlp.up_proj", "model.layers.2.self_attn.q_norm.weight"


def _other_width(folder: Path) -> None:
    case = Case()
    gptq(case, UP, torch.randn(128, HIDDEN))
    for name, tensor in case.tensors.items():
        change(folder, name, tensor)


def _other_layout(folder: Path) -> None:
    for end in ("qweight", "qzeros", "scales", "g_idx", "bias"):
        change(folder, f"{UP}.{end}", None)
    change(folder, f"{UP}.weight", torch.randn(INNER, HIDDEN))


def _without_files(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json: cannot open"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), r"config\.json: cannot be read"),
    "config is no object": (lambda f: (f / "config.json").write_text("[1]"), "expected a JSON object"),
    "no files": (_without_files, r"expected model\.safetensors or model\.safetensors\.index\.json"),
    "no map": (lambda f: change_json(f / "model.safetensors.index.json", weight_map=[]), "weight_map is missing"),
    "a file elsewhere": (
        lambda f: change_json(f / "model.safetensors.index.json", weight_map={"a": "../x.safetensors"}),
        r"'\.\./x\.safetensors' is no safetensors file beside it",
    ),
    "no shard": (lambda f: shard(f, 2).unlink(), r"the shard model-00002-of-00002\.safetensors is missing; download"),
    "a cut shard": (lambda f: shard(f).write_bytes(shard(f).read_bytes()[:-1]), "broken safetensors file"),
    "no matrix": (lambda f: change(f, f"{UP}.qweight", None), rf"tensor {UP}\.weight is missing; download"),
    "no scales": (lambda f: change(f, f"{UP}.scales", None), rf"layer {UP}: tensor scales is missing; download"),
    "no norm": (lambda f: change(f, NORM, None), rf"tensor {NORM} is missing; download"),
    "a short norm": (lambda f: change(f, NORM, torch.ones(32)), rf"{NORM} is \[32\], config\.json says \[64\]"),
    "a norm in int8": (lambda f: change(f, NORM, torch.ones(64).char()), rf"no kernel reads tensor {NORM} of type I8"),
    "a bias": (lambda f: change(f, f"{UP}.bias", torch.ones(INNER)), rf"does not run the bias of {UP}; use a GGUF"),
    "another width": (_other_width, rf"layer {UP} is \[128, 128\], config\.json says \[256, 128\]"),
    "another layout": (_other_layout, rf"{UP} are quantized in different ways and make no single matrix; use a GGUF"),
    "more layers": (lambda f: change_json(f / "config.json", num_hidden_layers=2), "has no place in this kind of"),
    "rotated inputs": (
        lambda f: change(f, f"{UP}.pre_quant_scale", torch.ones(HIDDEN)),
        rf"tensor {UP}\.pre_quant_scale has no place in this kind of decoder; use a GGUF",
    ),
    "an unknown method": (
        lambda f: change_json(f / "config.json", quantization_config={"quant_method": "hqq"}),
        "the quantization method 'hqq' is not supported; use a GGUF",
    ),
    "rotated weights": (
        lambda f: change_json(f / "config.json", quantization_config={"transform_config": {"R1": {}}}),
        "rotated weights",
    ),
    "no quantization": (
        lambda f: change_json(f / "config.json", quantization_config=[1]),
        "quantization_config is no object",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_folders_that_are_refused(name: str, folder: Path) -> None:
    spoil, said = BROKEN[name]
    spoil(folder)
    with pytest.raises(ModelError, match=said) as caught:
        load_pair(folder, None, CPU, CudaSettings(context=128), REFERENCES)
    assert "\n" not in str(caught.value)


def test_old_extras_do_not_matter(folder: Path) -> None:
    change(folder, "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(32))
    load_pair(folder, None, CPU, CudaSettings(context=64, draft=False), REFERENCES)
