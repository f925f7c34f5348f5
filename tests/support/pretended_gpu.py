"""Pretended RTX 4090, for decisions before anything runs on the GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from localdflash.backends.cuda import device as devices
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.running_pair import Running

STAGES = (
    "loading",
    "operations",
    "short prompt",
    "rows",
    "prompts",
    "blocks",
    "texts",
    "sampled texts",
    "graphs",
    "long context",
)


def pretend(patch: pytest.MonkeyPatch) -> None:
    """Pretend that this machine has the GPU."""
    patch.setattr(devices, "driver_present", lambda: True)
    patch.setattr(torch.version, "cuda", "13.0")
    patch.setattr(torch.cuda, "init", lambda: None)
    patch.setattr(torch.cuda, "device_count", lambda: 1)
    patch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 9))
    patch.setattr(torch.cuda, "get_device_name", lambda _device: "RTX 4090")
    patch.setattr(devices, "missing_tools", lambda: "")
    patch.setattr(devices, "gc", SimpleNamespace(collect=lambda: 0))  # slow in a test process
    patch.setattr("localdflash.backends.cuda.identity.driver_version", lambda: "580.65")
    patch.setattr(
        "localdflash.backends.cuda.identity.budget_of", lambda _device: MemoryBudget(24 << 30, 0, "GPU memory")
    )


def running() -> Running:
    """Return a loaded pair without content."""
    nothing: Any = None
    return Running(pair=nothing, context=64, device="cpu", vocab_size=0, identity=(), measured=dict, close=lambda: None)
