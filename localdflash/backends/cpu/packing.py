"""Pack a model file into an image, some rows at a time, so that little memory is needed whatever the size."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.image import Header, ImageEntry, ImageLayout, PlacedArray, Stamp, as_json
from localdflash.backends.cpu.matrices import PANEL, floats_of, pack_rows
from localdflash.backends.cpu.model_source import CheckedFile, Config, FileTensor
from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model
from localdflash.base.system.descriptor import read_at

CHUNK_WEIGHTS = 1 << 19  # packed at a time, so that the intermediates stay in cache

Progress = Callable[[int, int], None]  # bytes done, bytes in all
Write = Callable[[int, Any], None]  # at an offset, the bytes of an array


class _Rows(NamedTuple):
    """Some rows of a part, starting at a panel."""

    part: FileTensor
    expert: int
    first: int
    number: int


def header_of(source: CheckedFile[Config], stamp: Stamp) -> Header:
    """The header of the image of a source."""
    entries = tuple(ImageEntry(p.name, p.matrix, () if p.matrix else p.tensor.shape) for p in source.parts)
    return Header(stamp, as_json(source.config), entries)


def pack(source: CheckedFile[Config], header: Header, write: Write, progress: Progress | None = None) -> None:
    """Write the image of a source, of `ImageLayout(header).size` bytes; gaps between arrays are left out.

    ModelError names the tensor that cannot be packed, or says that the file became shorter meanwhile.
    """
    layout, done = ImageLayout(header), 0
    write(0, header.encoded())
    with ExitStack() as opened:
        files = [opened.enter_context(open_model(file))[0].fileno() for file in source.files]
        for rows in _rows_of(source):
            done += _write_rows(source, files[rows.part.tensor.part], layout, rows, write)
            if progress:
                progress(done, layout.weights)


def _rows_of(source: CheckedFile[Config]) -> Iterator[_Rows]:
    for part in source.parts:
        m = part.matrix
        if m is None:
            yield _Rows(part, 0, 0, 0)
            continue
        unit = part.paired or PANEL
        step = max(CHUNK_WEIGHTS // m.k // unit, 1) * unit
        for expert in range(m.experts):
            yield from (_Rows(part, expert, first, min(step, m.n - first)) for first in range(0, m.n, step))


def _write_rows(source: CheckedFile[Config], descriptor: int, layout: ImageLayout, rows: _Rows, write: Write) -> int:
    """Pack and write some rows; returns the bytes written."""
    info, places = rows.part.tensor, layout.places[rows.part.name]
    try:
        if rows.part.matrix is None:
            arrays: tuple[NDArray[Any], ...] = (_vector(rows.part, _read(descriptor, info.offset, info.nbytes)),)
            offsets = [place.offset for place in places]
        else:
            arrays = pack_rows(_blocks(descriptor, rows), info.ggml_type, rows.part.matrix.kind)
            offsets = [_offset(place, rows) for place in places]
    except ModelError as error:
        raise ModelError(f"{source.path}: tensor {info.name}: {error}; download or convert the model again") from None
    for offset, array in zip(offsets, arrays, strict=True):
        write(offset, array.data)
    return sum(array.nbytes for array in arrays)


def _offset(place: PlacedArray, rows: _Rows) -> int:
    """The place of the first of some rows in an array [experts, panels, ...]."""
    _, panels, *rest = place.array.shape
    panel = np.dtype(place.array.dtype).itemsize * int(np.prod(rest))
    return place.offset + (rows.expert * panels + rows.first // PANEL) * panel


def _vector(part: FileTensor, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    numbers = floats_of(raw, part.tensor.ggml_type)
    if not np.isfinite(numbers).all():
        raise ModelError("a number is not finite")
    return numbers


def _blocks(descriptor: int, rows: _Rows) -> NDArray[np.uint8]:
    """Some rows of a matrix as the file has them, [rows, bytes], in rotate-half order."""
    info, m, paired = rows.part.tensor, rows.part.matrix, rows.part.paired
    assert m is not None
    row = m.k // info.ggml_type.block_weights * info.ggml_type.block_bytes
    start = info.offset + (rows.expert * m.n + rows.first) * row
    raw = _read(descriptor, start, rows.number * row)
    if paired:
        raw = np.ascontiguousarray(raw.reshape(-1, paired // 2, 2, row).swapaxes(1, 2))
    return raw.reshape(rows.number, row)


def _read(descriptor: int, offset: int, size: int) -> NDArray[np.uint8]:
    raw = bytearray()
    while len(raw) < size:
        if not (more := read_at(descriptor, size - len(raw), offset + len(raw))):
            raise ModelError("the file became shorter")
        raw += more
    return np.frombuffer(raw, np.uint8)
