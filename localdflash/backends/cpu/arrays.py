"""Memory for the kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def aligned(shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """Zeros that start at a multiple of 64 bytes; the system provides the memory when it is first touched."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    zeros: NDArray[Any] = raw[start : start + size].view(dtype).reshape(shape)
    return zeros
