"""Costs of operations that do not run as their kernels: their part of a step, timed launch by launch."""

import time
from collections.abc import Iterator
from typing import Any

import torch

from localdflash.backends.cuda.choices import Choices
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import Op
from localdflash.backends.cuda.proof.operations import around, using

STEPS = 2  # the first step fills caches


def costs(pair: CudaPair, choices: Choices) -> Iterator[str]:
    """Yield a line for each operation in another form: its milliseconds in a step without a draft, and the step's."""
    if not choices.forms:
        return
    stepper, spent = pair.stepper, dict.fromkeys(choices.forms, 0.0)

    def timed(name: str, op: Op) -> Op:
        def run(*given: Any, **named: Any) -> None:
            began = _now(stepper.device)
            op(*given, **named)
            spent[name] += _now(stepper.device) - began

        return run if name in spent else op

    pair.forget()
    for _ in range(STEPS):
        spent.update(dict.fromkeys(spent, 0.0))
        began = _now(stepper.device)
        with pair.runner.on_gpu(), using(stepper, around(stepper.ops, timed)):
            stepper.step("plain", True, 1)
        whole = _now(stepper.device) - began
    pair.forget()
    for name, form in choices.forms.items():
        if spent[name]:
            yield f"{name} as {form}: {spent[name] * 1e3:.1f} ms of a step of {whole * 1e3:.1f} ms"


def _now(device: torch.device) -> float:
    """Return the time in seconds when the device is at rest."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
