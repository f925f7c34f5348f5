"""Triton's interpreter with its programs in another order, or with products that do not depend on a row's place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import TensorHandle, interpreter_builder


@contextmanager
def reversed_programs() -> Iterator[None]:
    """Run the programs of a grid, which the interpreter takes one by one, from the last to the first."""
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
    """Sum products in the order of k: numpy's matrix product rounds a row by its place in the matrix."""

    def dot(a: TensorHandle, b: TensorHandle, acc: TensorHandle, *_: Any) -> TensorHandle:
        products = a.data.astype(np.float32)[:, :, None] * b.data.astype(np.float32)
        return TensorHandle((products.sum(1) + acc.data).astype(acc.data.dtype), acc.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter_builder, "create_dot", dot)
        yield
