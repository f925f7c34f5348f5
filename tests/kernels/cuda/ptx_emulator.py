"""Executes the straight-line PTX of inline assembly on numpy arrays: the interpreter cannot run it."""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def _halves(x: Words) -> NDArray[np.float64]:
    return x.view(np.float16).astype(np.float64)


def _word(x: NDArray[np.float64]) -> Words:
    return x.astype(np.float16).view(np.uint32)  # one rounding, from the exact result


def _lop3(a: Words, b: Words, c: Words, table: Words) -> Words:
    terms = [(a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c) for i in range(8)]
    chosen = [term for i, term in enumerate(terms) if int(table[0]) >> i & 1]
    return np.bitwise_or.reduce(chosen)


def _prmt(a: Words, b: Words, selector: Words) -> Words:
    pool = np.concatenate([a.view(np.uint8).reshape(-1, 4), b.view(np.uint8).reshape(-1, 4)], 1)
    picks = [int(selector[0]) >> (4 * i) & 15 for i in range(4)]
    assert max(picks) < 8, "sign replication is not emulated"
    return np.ascontiguousarray(pool[:, picks]).view(np.uint32).reshape(-1)


_EXECUTE: dict[str, Callable[..., Words]] = {
    "mov.b32": lambda a: a,
    "shl.b32": lambda a, n: a << n,
    "shr.b32": lambda a, n: a >> n,
    "and.b32": lambda a, b: a & b,
    "xor.b32": lambda a, b: a ^ b,
    "lop3.b32": _lop3,
    "prmt.b32": _prmt,
    "neg.f16x2": lambda a: a ^ np.uint32(0x80008000),
    "sub.rn.f16x2": lambda a, b: _word(_halves(a) - _halves(b)),
    "mul.rn.f16x2": lambda a, b: _word(_halves(a) * _halves(b)),
    "fma.rn.f16x2": lambda a, b, c: _word(_halves(a) * _halves(b) + _halves(c)),
}


def run_ptx(text: str, **registers: Words) -> dict[str, Words]:
    """Run text on named registers ("$4": words); all of them, with what was computed. KeyError: an unknown opcode."""
    size = len(next(iter(registers.values())))
    for name, operands in re.findall(r"^\s*([a-z]\S+)\s+([^;]+);", text, re.M):
        target, *sources = operands.split(", ")
        values = [registers[x] if x in registers else np.full(size, int(x, 0), np.uint32) for x in sources]
        registers[target] = _EXECUTE[name](*values)
    return registers
