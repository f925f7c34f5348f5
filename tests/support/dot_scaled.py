"""`tl.dot_scaled` in Triton's interpreter, which before triton 3.8 has none: e2m1 codes, two a byte along k.

Scales are read as e8m0 whatever their type is, as the interpreters of later versions do.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([E2M1, -E2M1])


def install() -> None:
    """Give the interpreter what it lacks."""
    if not hasattr(InterpreterBuilder, "create_dot_scaled"):
        InterpreterBuilder.create_dot_scaled = _dot_scaled


def _dot_scaled(_: Any, a: Any, a_scale: Any, _a: Any, b: Any, b_scale: Any, _b: Any, *rest: Any) -> TensorHandle:
    """a [M, K / 2] times b [K / 2, N]; the accumulator [M, N] is the last argument."""
    acc = rest[-1]
    left, right = _values(a.data, a_scale.data), _values(b.data.T, b_scale.data)  # [M, K], [N, K]
    products = left[:, None, :] * right[None, :, :]
    return TensorHandle(acc.data + products.sum(-1, dtype=np.float32), acc.dtype.scalar)


def _values(codes: NDArray[np.uint8], scales: NDArray[Any]) -> NDArray[np.float32]:
    """What codes [rows, K / 2] under scales [rows, K / group] stand for: [rows, K]."""
    values = np.stack([VALUES[codes & 15], VALUES[codes >> 4]], -1).reshape(len(codes), -1)
    factors = np.exp2(scales.view(np.uint8).astype(np.float32) - 127)
    return values * factors.repeat(values.shape[1] // factors.shape[1], 1)
