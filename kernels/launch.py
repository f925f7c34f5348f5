"""How a kernel is launched here: on a GPU, or in Triton's interpreter, which lacks inline assembly and PDL.

Programmatic dependent launch (PDL) lets a kernel start while its predecessor drains. A kernel so launched must call
`wait` before it touches anything that a predecessor wrote, and every kernel of a chain must wait.
"""

import functools
import os
from typing import Any

import torch
import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ASM = not INTERPRETED  # constexpr switch: inline assembly or plain Triton


@functools.cache
def has_pdl(device: torch.device) -> bool:
    """Whether the chip launches dependent kernels early: compute capability 9.0 and up."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def every_launch(device: torch.device) -> dict[str, Any]:
    """Keyword arguments of every launch on a device."""
    return launch_options(has_pdl(device))


def launch_options(dependent: bool) -> dict[str, Any]:
    """The constexpr switch `PDL`, with the launch option that goes with it; and products are fused with the sums that
    they go into, whatever the default of a Triton is: with another one numbers would change, and texts with them.
    """
    return {"PDL": dependent, "enable_fp_fusion": True} | ({"launch_pdl": True} if dependent else {})


@triton.jit
def wait(PDL: tl.constexpr):
    """Wait until everything that ran before has finished and its writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Let the next kernel start its independent part: called when most of the work is done."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
