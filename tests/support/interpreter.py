"""Triton's interpreter with reversed program order, or with products that are independent of the row's position."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder


@contextmanager
def reversed_programs() -> Iterator[None]:
    """Run the programs of a grid from the last to the first."""
    forward = interpreter_builder.set_grid_idx

    def backward(x: int, y: int, z: int) -> None:
        nx, ny, _ = interpreter_builder.grid_dim
        last = nx * ny - 1 - (x * ny + y)
        forward(last % nx, last // nx, z)

    interpreter_builder.set_grid_idx = backward
    try:
        yield
    finally:
        interpreter_builder.set_grid_idx = forward


@contextmanager
def ordered_dot() -> Iterator[None]:
    """Sum products in the order of k, since the rounding of numpy's matrix product depends on the row's position."""

    def dot(a: TensorHandle, b: TensorHandle, acc: TensorHandle, *_: Any) -> TensorHandle:
        products = a.data.astype(np.float32)[:, :, None] * b.data.astype(np.float32)
        return TensorHandle((products.sum(1) + acc.data).astype(acc.data.dtype), acc.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter_builder, "create_dot", dot)
        yield


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([E2M1, -E2M1])


def install_dot_scaled() -> None:
    """Add `tl.dot_scaled` to interpreters before triton 3.8, for e2m1 codes, two per byte, and e8m0 scales."""
    if not hasattr(InterpreterBuilder, "create_dot_scaled"):
        InterpreterBuilder.create_dot_scaled = _dot_scaled


def _dot_scaled(_: Any, a: Any, a_scale: Any, _a: Any, b: Any, b_scale: Any, _b: Any, *rest: Any) -> TensorHandle:
    """Multiply a [M, K / 2] and b [K / 2, N]; the accumulator [M, N] is the last argument."""
    acc = rest[-1]
    left, right = _values(a.data, a_scale.data), _values(b.data.T, b_scale.data)  # [M, K], [N, K]
    products = left[:, None, :] * right[None, :, :]
    return TensorHandle(acc.data + products.sum(-1, dtype=np.float32), acc.dtype.scalar)


def _values(codes: NDArray[np.uint8], scales: NDArray[Any]) -> NDArray[np.float32]:
    """Return the values [rows, K] of codes [rows, K / 2] under scales [rows, K / group]."""
    values = np.stack([VALUES[codes & 15], VALUES[codes >> 4]], -1).reshape(len(codes), -1)
    factors = np.exp2(scales.view(np.uint8).astype(np.float32) - 127)
    return values * factors.repeat(values.shape[1] // factors.shape[1], 1)
