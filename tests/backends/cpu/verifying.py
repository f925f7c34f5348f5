"""Verifies of a CPU target, row by row, to be compared to the bit."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.engine.draft import Draft

Row = tuple[NDArray[np.float32], NDArray[np.float32]]  # logits and taps


def ids_of(count: int, vocabulary: int = 150) -> list[int]:
    return [int(i) for i in np.random.default_rng(5).integers(0, vocabulary, count)]


def verify(target: CpuTarget, tokens: Sequence[int]) -> list[Row]:
    seen = target.verify(tokens[0], Draft("test", tokens[1:], [1.0] * (len(tokens) - 1)))
    assert seen.taps is not None
    return [(logits.copy(), taps.copy()) for logits, taps in zip(seen.logits, seen.taps, strict=True)]


def one_by_one(target: CpuTarget, tokens: Sequence[int]) -> list[Row]:
    rows = []
    for token in tokens:
        rows += verify(target, [token])
        target.keep(1)
    return rows


def same(a: Sequence[Row], b: Sequence[Row]) -> bool:
    return all(np.array_equal(x[0], y[0]) and np.array_equal(x[1], y[1]) for x, y in zip(a, b, strict=True))
