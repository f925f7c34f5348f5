"""Measures how long a step spends in operations that do not run as their kernels."""

import time
from collections.abc import Iterator
from typing import Any

import torch

from localdflash.backends.cuda.choices import Choices
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import Op
from localdflash.backends.cuda.proof.operations import using_ops, wrap_ops

STEPS = 2  # only the last step counts, since the first fills caches


def costs(pair: CudaPair, choices: Choices) -> Iterator[str]:
    """Yield a line per operation in `choices.forms`: its milliseconds in a step without drafting, and the step's."""
    if not choices.forms:
        return
    stepper, spent = pair.stepper, dict.fromkeys(choices.forms, 0.0)

    def time_op(name: str, op: Op) -> Op:
        def run(*args: Any, **kwargs: Any) -> None:
            start = _now(stepper.device)
            op(*args, **kwargs)
            spent[name] += _now(stepper.device) - start

        return run if name in spent else op

    pair.forget()
    for _ in range(STEPS):
        spent.update(dict.fromkeys(spent, 0.0))
        start = _now(stepper.device)
        with pair.runner.on_gpu(), using_ops(stepper, wrap_ops(stepper.ops, time_op)):
            stepper.step("plain", True, 1)
        step_seconds = _now(stepper.device) - start
    pair.forget()
    for name, form in choices.forms.items():
        if spent[name]:
            yield f"{name} as {form}: {spent[name] * 1e3:.1f} ms of a step of {step_seconds * 1e3:.1f} ms"


def _now(device: torch.device) -> float:
    """Wait for the device; return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
