"""What the kernels cannot run, or would read beyond, is refused by name before it is loaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localdflash.backends.cuda.cuda_checks import check_drafter, check_kinds
from localdflash.base.errors import ModelError
from tests.backends.cuda.repack.test_planes import write_gguf
from tests.security.gguf_mutations import build, parse
from tests.support.cuda_pairs import load_on_cpu
from tests.support.random_drafters import config_of


@pytest.mark.parametrize(
    ("name", "ne", "said"),
    [
        ("blk.0.attn_output.weight", (64, 32), r"has shape \[32, 64\], not \[64, 64\]"),
        ("blk.5.attn_norm.weight", (32,), r"has shape \[32\], not \[64\]"),
        ("blk.3.ffn_up.weight", (), "is missing"),
    ],
)
def test_a_target(name: str, ne: tuple[int, ...], said: str, tiny_pair: Path, tmp_path: Path) -> None:
    path = changed(tiny_pair / "target.gguf", name, ne, tmp_path)
    with pytest.raises(ModelError, match=f"tensor {name} {said}"):
        load_on_cpu(path, context=64)


def changed(path: Path, name: str, ne: tuple[int, ...], folder: Path) -> Path:
    """The file with another shape of a tensor, or without it."""
    parsed = parse(path.read_bytes())
    tensors = [replace(one, ne=ne) if one.name == name else one for one in parsed.tensors]
    kept = tuple(one for one in tensors if one.ne)
    assert kept != parsed.tensors
    out = folder / path.name
    out.write_bytes(build(replace(parsed, tensors=kept)))
    return out


def test_a_quantization_that_planes_do_not_hold(tmp_path: Path) -> None:
    header = write_gguf(tmp_path / "model.gguf", {"blk.0.attn_q.weight": ("IQ4_XS", np.zeros((4, 136), np.uint8))})
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.weight is IQ4_XS.*--backend llama\.cpp"):
        check_kinds(header)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"block_size": 17}, "blocks of 17 rows, more than 16"),
        ({"selector_top_k": 17}, "17 candidates for a slot, more than 16"),
        ({"taps": (1, 3, 1)}, "a tap that is told twice"),
    ],
)
def test_a_drafter_that_is_too_large(changes: dict[str, Any], what: str) -> None:
    config = config_of("DFlash 2", 500)
    check_drafter(config, "x")
    with pytest.raises(ModelError, match=f"x: the CUDA engine runs no drafters with {what}.*--backend llama.cpp"):
        check_drafter(replace(config, **changes), "x")
