"""How much memory of a GPU a pair may take, and what stays free on it.

What torch holds of closed pairs counts as free. Besides what planning cannot see (`RESERVE`) a desktop gets room to
grow: under Linux a full card breaks its windows, and it does not say beforehand what it will want.
"""

from dataclasses import replace

import torch

from localdflash.backends.cuda.cuda_sizes import RESERVE
from localdflash.base.errors import OutOfMemory
from localdflash.models.memory.fit import NO_DRAFTER, Fit, MemoryBudget, Sizes, fit
from localdflash.models.memory.parts import total

DESKTOP, OTHERS = 512 << 20, 128 << 20  # bytes for windows, where some are shown, and for whatever else runs
SPARE = 8  # the part of what is free that a context which nobody asked for leaves free
TRIES = 4


def budget_of(device: torch.device) -> MemoryBudget:
    """Return what is free on a GPU now: measured once for each plan, for it changes while one looks."""
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    margin = RESERVE + (DESKTOP if is_shown_on(device) else OTHERS)
    return MemoryBudget(free, margin, "GPU memory", spare=free // SPARE)


def is_shown_on(device: torch.device) -> bool:
    """Return whether a display is active on a GPU; False if NVIDIA's management library (NVML) does not tell."""
    try:
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return bool(pynvml.nvmlDeviceGetDisplayActive(handle))
    except Exception:  # no library, an old one, an old torch, no CUDA: a GPU without a desktop
        return False


def is_out_of_memory(error: Exception) -> bool:
    """Return whether a GPU was full: Triton and graphs say so in words of the driver."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def smaller(sizes: Sizes, planned: Fit, wanted: int, there: MemoryBudget, times: int) -> Fit:
    """Return the next plan for a pair that did not fit though it was planned, with less the more often it was tried.

    The drafter shrinks before a context that was asked for does. OutOfMemory if nothing smaller is left.
    """
    less = total(planned.parts) >> (TRIES + 1 - times)  # a 16th, an 8th, a quarter
    there = replace(there, free=min(there.free, there.needed(planned.parts) - less), spare=0)
    if wanted:
        try:
            return fit(sizes, there, wanted)
        except OutOfMemory:
            pass
    return fit(_Within(sizes, planned.context), there, 0)


def told(planned: Fit, tried: Fit, said: str) -> str:
    """Return a line for the user about what is loaded instead of what was planned."""
    now = [f"{planned.context} tokens of context"]
    if planned.drafter != tried.drafter:
        now.append("no drafter" if planned.drafter == NO_DRAFTER else f"a drafter of {planned.drafter}")
    return f"{said}: loaded with {' and '.join(now)} instead of {tried.context} tokens"


class _Within:
    """Sizes of a context that is at most so long."""

    def __init__(self, sizes: Sizes, longest: int) -> None:
        self.trained, self.drafters, self.parts = longest, sizes.drafters, sizes.parts
