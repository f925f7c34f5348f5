"""What a pair on the CUDA engine takes, measured, beside what was planned for it."""

from pathlib import Path

import pytest
import torch

from localdflash.backends.cuda.assembly import CudaSettings, load_pair
from localdflash.backends.cuda.cuda_sizes import CudaSizes
from localdflash.backends.cuda.load_cuda import measured
from localdflash.backends.cuda.ops import KERNELS
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV

EMBEDDED = Path(__file__).parents[3] / "localdflash" / "models" / "embedded"
RESERVED = 1 << 30  # bytes that torch is made to say it holds


@pytest.mark.parametrize("drafts", [True, False])
def test_weights_and_caches_are_those_that_were_planned(drafts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "localdflash.backends.cuda.assembly.measure", lambda _stepper, _runner, ways: dict.fromkeys(ways, 1.0)
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: RESERVED)
    target, drafter = EMBEDDED / "target.gguf", EMBEDDED / "drafter.gguf" if drafts else None
    pair = load_pair(target, drafter, torch.device("cpu"), CudaSettings(context=1024), KERNELS)
    sizes = CudaSizes(target, drafter)
    planned, found = sizes.parts(1024, sizes.drafters[0]), measured(pair.stepper)
    assert found.keys() == planned.keys() == {TARGET, TARGET_KV, SCRATCH} | ({DRAFTER, DRAFTER_KV} if drafts else set())
    for part in found.keys() - {SCRATCH}:
        assert found[part] == pytest.approx(planned[part], rel=0.12), part  # tables of RoPE are scratch in the plan
    assert sum(found.values()) == RESERVED
