"""Drafters that the CUDA engine lacks a part for are refused before anything is loaded."""

from dataclasses import replace
from pathlib import Path

import pytest

from localdflash.cuda.assembly import check_drafter
from localdflash.cuda.sizes import CudaSizes
from localdflash.errors import ModelError
from localdflash.weights.gguf import read_header
from tests.support.random_drafters import VARIANTS, config_of, random_weights, write_gguf

LACKING = [name for name in VARIANTS if name.startswith("D") or "own" in name or "reduced" in name]


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_it_lacks_is_refused(variant: str) -> None:
    config = config_of(variant, 500)
    if variant not in LACKING:
        check_drafter(config, "x")
        config = replace(config, decoder=replace(config.decoder, rope_factors=(1.0,) * 16))
    with pytest.raises(ModelError, match="x: the CUDA engine runs no drafters of DSpark or DFlash 2"):
        check_drafter(config, "x")


def test_planning_refuses_it_too(tiny_pair: Path, tmp_path: Path) -> None:
    target = tiny_pair / "target.gguf"
    config = config_of("DFlash 2", len(read_header(target).require("tokenizer.ggml.tokens", list)))
    path = write_gguf(tmp_path / "drafter.gguf", config, random_weights(config), target)
    with pytest.raises(ModelError, match=r"drafter\.gguf: the CUDA engine runs no drafters"):
        CudaSizes(target, path)
