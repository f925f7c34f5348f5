"""The planner against the tensors of loaded pairs, and its errors for unsupported files."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.cuda_checks import PLANES, check_drafter, check_tensor_types
from localdflash.backends.cuda.cuda_sizes import CudaSizes, tensor_bytes
from localdflash.backends.cuda.load_cuda import measure_parts
from localdflash.backends.cuda.ops import KERNELS
from localdflash.backends.cuda.repack.gguf_planes import planes_of_blocks
from localdflash.base.errors import ModelError
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV, total
from tests.backends.cuda.repack.test_planes import write_gguf
from tests.security.gguf_mutations import build, parse
from tests.support.cuda_pairs import load_on_cpu
from tests.support.random_drafters import config_of

RESERVED = 1 << 30  # bytes that the patched torch reports as held
EMBEDDED = Path(__file__).parents[3] / "localdflash" / "models" / "embedded"


def storages(thing: Any, seen: set[int]) -> Iterator[int]:
    """Return the bytes of every reachable tensor, each storage once."""
    if id(thing) in seen or isinstance(thing, type):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        storage = thing.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage.nbytes()
        return
    parts = thing if isinstance(thing, dict) else getattr(thing, "__dict__", {})
    for part in thing if isinstance(thing, list | tuple) else list(parts.values()):
        yield from storages(part, seen)


def test_planes_use_planned_bytes() -> None:
    for kind in PLANES:
        raw = torch.zeros(200 * 512 // kind.block_weights * kind.block_bytes, dtype=torch.uint8)
        assert planes_of_blocks(raw, kind, 200, 512).nbytes == tensor_bytes(kind, (200, 512)), kind


def test_kv_cache_type_of_other_backends_is_refused() -> None:
    with pytest.raises(ModelError, match=r"^--kv k8v4: the CUDA engine has no such KV cache; use int8 or fp8$"):
        CudaSizes(EMBEDDED / "target.gguf", None, "k8v4")


@pytest.mark.parametrize("drafts", [True, False])
def test_loaded_pair_uses_planned_bytes(drafts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: RESERVED)
    target, drafter = EMBEDDED / "target.gguf", EMBEDDED / "drafter.gguf" if drafts else None
    pair = load_on_cpu(target, drafter, KERNELS, context=1024)
    sizes = CudaSizes(target, drafter)
    planned, found = sizes.parts(1024, sizes.drafters[0]), measure_parts(pair.stepper)
    assert found.keys() == planned.keys() == {TARGET, TARGET_KV, SCRATCH} | ({DRAFTER, DRAFTER_KV} if drafts else set())
    for part in found.keys() - {SCRATCH}:
        assert found[part] == pytest.approx(planned[part], rel=0.12), part  # tables of RoPE are scratch in the plan
    assert sum(found.values()) == RESERVED
    loaded_bytes = sum(storages(pair.stepper, set()))
    assert total(planned) == pytest.approx(loaded_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("name", "ne", "message"),
    [
        ("blk.0.attn_output.weight", (64, 32), r"has shape \[32, 64\], not \[64, 64\]"),
        ("blk.5.attn_norm.weight", (32,), r"has shape \[32\], not \[64\]"),
        ("blk.3.ffn_up.weight", (), "is missing"),
    ],
)
def test_unsupported_target_is_refused(
    name: str, ne: tuple[int, ...], message: str, tiny_pair: Path, tmp_path: Path
) -> None:
    path = changed(tiny_pair / "target.gguf", name, ne, tmp_path)
    with pytest.raises(ModelError, match=f"tensor {name} {message}"):
        load_on_cpu(path, context=64)


def changed(path: Path, name: str, ne: tuple[int, ...], folder: Path) -> Path:
    """Write the file with another shape of a tensor, or without the tensor."""
    parsed = parse(path.read_bytes())
    tensors = [replace(one, ne=ne) if one.name == name else one for one in parsed.tensors]
    present = tuple(one for one in tensors if one.ne)
    assert present != parsed.tensors
    out = folder / path.name
    out.write_bytes(build(replace(parsed, tensors=present)))
    return out


def test_unsupported_quantization_is_refused(tmp_path: Path) -> None:
    header = write_gguf(tmp_path / "model.gguf", {"blk.0.attn_q.weight": ("IQ4_XS", np.zeros((4, 136), np.uint8))})
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.weight is IQ4_XS.*--backend llama\.cpp"):
        check_tensor_types(header)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"block_size": 17}, "blocks of 17 tokens, more than 16"),
        ({"selector_top_k": 17}, "17 candidates per draft token, more than 16"),
        ({"taps": (1, 3, 1)}, "a duplicate tap"),
    ],
)
def test_too_large_drafter_is_refused(changes: dict[str, Any], what: str) -> None:
    config = config_of("DFlash 2", 500)
    check_drafter(config, "x")
    with pytest.raises(ModelError, match=f"x: the CUDA engine runs no drafters with {what}.*--backend llama.cpp"):
        check_drafter(replace(config, **changes), "x")
