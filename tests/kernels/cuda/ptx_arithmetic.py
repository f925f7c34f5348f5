"""PTX's scalar and FP4 instructions, on numpy arrays that hold a register of every thread."""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from localdflash.kernels.cuda.planes import E2M1

Array = NDArray[Any]
Words = NDArray[np.uint32]
_VALUES = np.array(E2M1)


def as_type(x: Array, kind: type) -> Array:
    """Return the low bits of 64-bit registers as another type."""
    return np.ascontiguousarray(x).view(np.uint8).reshape(-1, 8)[:, : np.dtype(kind).itemsize].copy().view(kind)[:, 0]


def as_register(x: Array) -> Array:
    """Return values of any type as 64-bit registers."""
    return x.view(f"u{x.dtype.itemsize}").astype(np.uint64)


def arithmetic(head: str, x: list[Array]) -> Array:
    """Compute a floating-point instruction in float64; the caller rounds."""
    functions: dict[str, Callable[..., Array]] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.abs,
        "min": lambda *x: functools.reduce(np.fmin, x), "max": lambda *x: functools.reduce(np.fmax, x),
        "fma": lambda a, b, c: a * b + c, "rcp": np.reciprocal, "sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a),
        "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        return functions[head](*x)


def _lop3(a: Array, b: Array, c: Array, table: Array) -> Array:
    terms = [(a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c) for i in range(8)]
    return np.bitwise_or.reduce([term for i, term in enumerate(terms) if int(table[0]) >> i & 1])


def _prmt(a: Array, b: Array, selector: Array) -> Array:
    pool = np.stack([a, b], 1).copy().view(np.uint8)  # [threads, 8]
    picks = (selector[:, None] >> (np.arange(4, dtype=np.uint32) * np.uint32(4))) & np.uint32(15)
    chosen = np.take_along_axis(pool, (picks & np.uint32(7)).astype(np.int64), 1)
    chosen = np.where(picks & np.uint32(8), np.where(chosen > 127, 255, 0), chosen).astype(np.uint8)
    return np.ascontiguousarray(chosen).view(np.uint32)[:, 0]


def _bfe(x: Array, start: Array, length: Array) -> Array:
    size = int(length[0])
    field = (x.view(np.uint32).astype(np.int64) >> int(start[0])) & (2**size - 1)
    signed = x.dtype == np.int32
    return np.where(field >> (size - 1) & signed, field - 2**size, field).astype(x.dtype)


def _popc(x: Array) -> Array:
    return np.unpackbits(x.view(np.uint8).reshape(len(x), -1), axis=1).sum(1).astype(np.uint32)


def integers(head: str, parts: list[str], kind: type, x: list[Array]) -> Array:
    """Compute an integer or bit instruction on registers."""
    values: list[Array] = [as_type(value, kind) for value in x]
    if head in {"mul", "mad"} and parts[1] in {"wide", "hi"}:
        wide: type = np.int64 if np.issubdtype(kind, np.signedinteger) else np.uint64
        product: Array = values[0].astype(wide) * values[1].astype(wide)
        if parts[1] == "hi":
            return (product >> (8 * np.dtype(kind).itemsize)).astype(kind)
        return product + as_type(x[2], wide) if head == "mad" else product
    if head in {"shl", "shr"}:
        value = values[0].astype(np.int64 if np.issubdtype(kind, np.signedinteger) else np.uint64)
        by = np.minimum(as_type(x[1], np.uint32), 63).astype(value.dtype)
        return (value << by if head == "shl" else value >> by).astype(kind)
    functions: dict[str, Callable[..., Array]] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor, "not": np.invert, "neg": np.negative, "min": np.minimum, "max": np.maximum,
        "mad": lambda a, b, c: a * b + c, "cvta": lambda a: a, "div": np.floor_divide, "rem": np.remainder,
        "lop3": _lop3, "prmt": _prmt, "bfe": _bfe, "popc": _popc,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        return functions[head](*values)


def run_ptx(text: str, **registers: Words) -> dict[str, Words]:
    """Run text on named registers ("$4": words); all of them, with what was computed. KeyError: an unknown opcode."""
    size = len(next(iter(registers.values())))
    for name, operands in re.findall(r"^\s*([a-z]\S+)\s+([^;]+);", text, re.M):
        if "{" in operands:
            _move_halves(operands, registers)
            continue
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


def _move_halves(operands: str, registers: dict[str, Words]) -> None:
    """Run `mov.b32 {low, high}, word` or `mov.b32 word, {low, high}`."""
    names = re.findall(r"[$\w]+", operands)
    if operands.startswith("{"):
        low, high, word = names
        registers[low], registers[high] = registers[word] & np.uint32(0xFFFF), registers[word] >> np.uint32(16)
    else:
        word, low, high = names
        registers[word] = registers[low] | registers[high] << np.uint32(16)


def _codes(registers: list[Array]) -> list[Array]:
    """Values [warps, 8, 32] of registers uint32 [threads]."""
    shifts = np.arange(8, dtype=np.uint32) * np.uint32(4)
    return [_VALUES[(x[:, None] >> shifts) & np.uint32(15)].reshape(-1, 8, 32) for x in registers]


def _scales(register: Array, kind: str, count: int) -> Array:
    """Scales [warps, 8, 4, count] of a register uint32 [threads]: `count` for the 64 codes of a row."""
    codes = np.ascontiguousarray(register).view(np.uint8).reshape(-1, 8, 4, 4)[..., :count]
    if kind == "ue8m0":
        return np.exp2(codes.astype(np.float64) - 127)
    assert kind == "ue4m3"
    return torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn).double().numpy()


def scaled_product(parts: list[str], a: list[Array], b: list[Array], scale_a: Array, scale_b: Array) -> Array:
    """The product float64 [warps, 16, 8] of m16n8k64 of e2m1 over a warp's registers [threads], for byte and thread 0.

    A register holds eight codes, the first in its lowest bits. The scales of a row are bytes of one register:
    for A in the first two lanes of a quad (rows g and g + 8), for B in the first one.
    """
    count = 2 if "scale_vec::2X" in parts else 4
    a0, a1, a2, a3 = _codes(a)
    left = np.concatenate([np.concatenate([a0, a2], 2), np.concatenate([a1, a3], 2)], 1)
    right = np.concatenate(_codes(b), 2)
    rows, columns = _scales(scale_a, parts[-1], count), _scales(scale_b, parts[-1], count)
    left = left * np.concatenate([rows[:, :, 0], rows[:, :, 1]], 1).repeat(64 // count, 2)
    right = right * columns[:, :, 0].repeat(64 // count, 2)
    product: Array = left @ right.transpose(0, 2, 1)
    return product
