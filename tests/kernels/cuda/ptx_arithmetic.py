"""PTX's scalar instructions, on numpy arrays that hold a register of every thread."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def as_type(x: Array, kind: type) -> Array:
    """The low bits of 64-bit registers as another type."""
    return np.ascontiguousarray(x).view(np.uint8).reshape(-1, 8)[:, : np.dtype(kind).itemsize].copy().view(kind)[:, 0]


def as_register(x: Array) -> Array:
    """Any type as a 64-bit register."""
    return x.view(f"u{x.dtype.itemsize}").astype(np.uint64)


def arithmetic(head: str, x: list[Array]) -> Array:
    """Floating-point instructions, on float64: the caller rounds."""
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
    """Integer and bit instructions on operands of a type, from registers."""
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
