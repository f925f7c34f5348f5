"""Executes the straight-line PTX of inline assembly on numpy arrays: the interpreter cannot run it."""

import re

import numpy as np
from numpy.typing import NDArray

from tests.kernels.cuda.ptx_arithmetic import arithmetic, integers

Words = NDArray[np.uint32]


def run_ptx(text: str, **registers: Words) -> dict[str, Words]:
    """Run text on named registers ("$4": words); all of them, with what was computed. KeyError: an unknown opcode."""
    size = len(next(iter(registers.values())))
    for name, operands in re.findall(r"^\s*([a-z]\S+)\s+([^;]+);", text, re.M):
        target, *sources = operands.split(", ")
        values = [registers[x] if x in registers else np.full(size, int(x, 0), np.uint32) for x in sources]
        head, *_, kind = parts = name.split(".")
        if head == "mov":
            registers[target] = values[0]
        elif kind == "f16x2":  # rounded once, from the exact result
            halves = [x.view(np.float16).astype(np.float64) for x in values]
            registers[target] = arithmetic(head, halves).astype(np.float16).view(np.uint32)
        else:
            wide = [x.astype(np.uint64) for x in values]
            registers[target] = integers(head, parts, np.uint32, wide)
    return registers
