"""The drafter's head over a short vocabulary (see models/shapes/short_vocabulary.py): the same weights, fewer rows."""

from dataclasses import replace

from torch import Tensor
from torch.nn.functional import pad

from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import COLUMNS, Planes
from localdflash.models.shapes.short_vocabulary import check_ids


def rows_of(planes: Planes, ids: Tensor) -> Planes:
    """Keep the rows `ids` (int [size]) of a head's weights, in that order and bit by bit; padded as planes are."""
    if planes.experts != 1:
        raise ModelError(f"a head is one matrix, not {planes.experts} experts; use the full vocabulary")
    columns = check_ids(ids.tolist(), planes.n).to(planes.base.device)
    missing = -len(columns) % COLUMNS

    def select(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else pad(tensor.index_select(-1, columns), (0, missing))

    base, scale = select(planes.base), select(planes.scale)
    assert base is not None
    assert scale is not None
    high, supers, minimum = select(planes.high), select(planes.supers), select(planes.minimum)
    return replace(planes, n=len(columns), base=base, high=high, scale=scale, supers=supers, minimum=minimum)
