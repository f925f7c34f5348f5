"""The drafter's head over a short vocabulary: the rows of the target's packed head that are asked for, code by code.

It belongs to a pair, not to a file, and is made from mapped weights in a few milliseconds. So it is held in memory and
not kept on disk, where it would have to be made again whenever either of the two files changes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.arrays import aligned
from localdflash.backends.cpu.matrices import PANEL, MatrixShape, PackedMatrix


def rows_of(head: PackedMatrix, ids: NDArray[np.int32]) -> PackedMatrix:
    """The rows `ids` of a matrix, in that order; the last panel is filled up with the last of them."""
    shape = MatrixShape(head.kind, len(ids), head.k)
    whole = np.pad(ids, (0, -len(ids) % PANEL), mode="edge")
    arrays = [array for array in (head.codes.view(np.uint32), head.scales, head.supers) if array is not None]
    codes, *rest = (_chosen(array, whole) for array in arrays)
    return PackedMatrix(head.kind, shape.n, shape.k, 1, codes.view(np.uint8), *rest)


def _chosen(packed: NDArray[Any], ids: NDArray[np.int32]) -> NDArray[Any]:
    """Channels `ids` of an array [1, panels, ..., 16 * n], in which neighbours are of neighbouring channels."""
    panels = packed.reshape(packed.shape[1], -1, PANEL)
    rows = panels[ids // PANEL, :, ids % PANEL].reshape(len(ids) // PANEL, PANEL, -1)
    chosen = aligned((1, len(rows), *packed.shape[2:]), packed.dtype)
    chosen.reshape(len(rows), -1, PANEL)[...] = rows.swapaxes(1, 2)
    return chosen
