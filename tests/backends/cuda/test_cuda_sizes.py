"""The planner against the tensors that a loaded pair really holds, and what it says where they do not fit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.cuda_checks import PLANES
from localdflash.backends.cuda.cuda_sizes import CudaSizes, tensor_bytes
from localdflash.backends.cuda.load_cuda import measured
from localdflash.backends.cuda.ops import KERNELS
from localdflash.backends.cuda.repack.gguf_planes import planes_of_blocks
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV, total
from tests.support.cuda_pairs import load_on_cpu

RESERVED = 1 << 30  # bytes that torch is made to say it holds
EMBEDDED = Path(__file__).parents[3] / "localdflash" / "models" / "embedded"


def storages(thing: Any, seen: set[int]) -> Iterator[int]:
    """Bytes of every tensor that is reachable, each storage once."""
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


def test_planes_take_what_is_planned() -> None:
    for kind in PLANES:
        raw = torch.zeros(200 * 512 // kind.block_weights * kind.block_bytes, dtype=torch.uint8)
        assert planes_of_blocks(raw, kind, 200, 512).nbytes == tensor_bytes(kind, (200, 512)), kind


@pytest.mark.parametrize("drafts", [True, False])
def test_weights_and_caches_are_those_that_were_planned(drafts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: RESERVED)
    target, drafter = EMBEDDED / "target.gguf", EMBEDDED / "drafter.gguf" if drafts else None
    pair = load_on_cpu(target, drafter, KERNELS, context=1024)
    sizes = CudaSizes(target, drafter)
    planned, found = sizes.parts(1024, sizes.drafters[0]), measured(pair.stepper)
    assert found.keys() == planned.keys() == {TARGET, TARGET_KV, SCRATCH} | ({DRAFTER, DRAFTER_KV} if drafts else set())
    for part in found.keys() - {SCRATCH}:
        assert found[part] == pytest.approx(planned[part], rel=0.12), part  # tables of RoPE are scratch in the plan
    assert sum(found.values()) == RESERVED
    held = sum(storages(pair.stepper, set()))
    assert total(planned) == pytest.approx(held, rel=0.05)
