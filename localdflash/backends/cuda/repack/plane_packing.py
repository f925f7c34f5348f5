"""Write planes from rows of codes and scales, as the readers of file formats unpack them, or from rows of floats.

Rows come in as files store them, [rows, k]; planes hold columns, [k, rows]. Padding is already zero and stays so.

Floats are quantized to integers at load time: symmetric, round to nearest, one float32 scale for 128 weights along k.
int8 is for drafters that come in bfloat16, where it costs next to nothing; int4 halves their bytes again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import COLUMNS, SUPER, Code, Planes, Scaling, pack_bytes, pack_fields, pack_halves

# Weights unpacked at a time: 0.1 GB of intermediates, and launches too few to matter on a GPU.
CHUNK_WEIGHTS = 1 << 22


@dataclass(frozen=True)
class PlaneLayout:
    """The properties of planes that do not depend on a matrix; see `Planes`."""

    rows: int
    high_bits: int
    scaling: Scaling
    zero: int = 0
    code: Code = "int"
    has_minimum: bool = False


@dataclass(frozen=True)
class UnpackedRows:
    """Some rows of a matrix, unpacked; a group is 128 weights for "block", R for the other scalings."""

    codes: Tensor  # uint8 [rows, k]
    scale: Tensor  # [rows, groups]: float32 ("block"), float16 ("half4"), uint8 or int8 ("byte4")
    minimum: Tensor | None = None  # [rows, groups]: float16 ("half4") or uint8 ("byte4")
    supers: Tensor | None = None  # float16 [rows, k / 256, 2]: of the scales, of the minimums


INT8 = PlaneLayout(rows=32, high_bits=4, scaling="block", zero=128)
INT4 = PlaneLayout(rows=32, high_bits=0, scaling="block", zero=8)
BLOCK = 128  # weights under one scale of "block"


def padded(size: int, multiple: int) -> int:
    """Return the least multiple that holds `size`."""
    return -(-size // multiple) * multiple


def half_scales(scale: Tensor) -> Tensor:
    """Float scales as float16; ModelError if one is too large."""
    half = scale.to(torch.float16)
    if bool(half.isinf().any()):
        raise ModelError("its scales are too large for float16; use `--backend llama.cpp`")
    return half


def empty(layout: PlaneLayout, n: int, k: int, experts: int, device: torch.device) -> Planes:
    """Planes of the given layout whose weights are all zero."""
    columns, k_padded = padded(n, COLUMNS), experts * padded(k, 4 * layout.rows)
    blocks = k_padded // (4 * layout.rows)

    def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(*shape, columns, dtype=dtype, device=device)

    words = (blocks, 2) if layout.scaling == "half4" else (blocks,)
    by_block = zeros(torch.float32 if layout.scaling == "block" else torch.int32, *words)
    return Planes(
        n=n,
        k=k,
        rows=layout.rows,
        base=zeros(torch.int16, k_padded // 4),
        high=zeros({2: torch.uint8, 4: torch.int16}[layout.high_bits], k_padded // 4) if layout.high_bits else None,
        scaling=layout.scaling,
        scale=by_block,
        supers=zeros(torch.int32, k_padded // SUPER) if layout.scaling == "byte4" else None,
        minimum=torch.zeros_like(by_block) if layout.has_minimum else None,
        zero=layout.zero,
        code=layout.code,
        experts=experts,
    )


def fill(planes: Planes, expert: int, unpack: Callable[[slice], UnpackedRows]) -> None:
    """Write the matrix of one expert, some rows at a time; `unpack` reads the rows of a slice."""
    step = padded(max(1, CHUNK_WEIGHTS // planes.k), COLUMNS)
    for first in range(0, planes.n, step):
        rows = slice(first, min(first + step, planes.n))
        _write(planes, expert, rows, unpack(rows))


def _write(planes: Planes, expert: int, columns: slice, rows: UnpackedRows) -> None:
    p = planes

    def put(plane: Tensor, words: Tensor) -> None:
        plane.view(p.experts, -1, *plane.shape[1:])[expert][..., columns] = words

    codes = _columns(rows.codes, p.padded_k)
    put(p.base, pack_fields(codes & 15, p.rows, 4))
    if p.high is not None:
        put(p.high, pack_fields(codes >> 4, p.rows, p.high_bits))
    put(p.scale, _group_words(p, rows.scale))
    if p.minimum is not None:
        assert rows.minimum is not None
        put(p.minimum, _group_words(p, rows.minimum))
    if p.supers is not None:
        assert rows.supers is not None
        put(p.supers, pack_halves(rows.supers[..., 0], rows.supers[..., 1]).t())


def _columns(values: Tensor, size: int) -> Tensor:
    """[rows, size or less] -> [size, rows], padded with zeros."""
    return F.pad(values, (0, size - values.shape[1])).t()


def _group_words(planes: Planes, groups: Tensor) -> Tensor:
    """Scales or minimums by group, [rows, groups], as planes hold them."""
    columns = _columns(groups, planes.padded_k // (4 * planes.rows if planes.scaling == "block" else planes.rows))
    if planes.scaling == "half4":
        pairs = columns.reshape(-1, 2, 2, columns.shape[1])  # [blocks, word, half, rows]
        columns = pack_halves(pairs[:, :, 0], pairs[:, :, 1])
    return pack_bytes(columns) if planes.scaling == "byte4" else columns


def quantize(weights: Tensor, bits: int = 8) -> Planes:
    """Quantize [n, k] float weights to planes with "block" scaling, on their device.

    The error of a weight is at most half a step: the largest magnitude of its block / 127 (8 bits) or / 7 (4 bits).
    """
    n, k = weights.shape
    planes = empty({8: INT8, 4: INT4}[bits], n, k, 1, weights.device)
    fill(planes, 0, lambda rows: quantize_rows(weights[rows], bits))
    return planes


def quantize_rows(weights: Tensor, bits: int = 8) -> UnpackedRows:
    """Quantize some rows, [rows, k] -> codes [rows, k] and a scale for every 128 weights [rows, ceil(k / 128)]."""
    rows, k = weights.shape
    limit = 2 ** (bits - 1) - 1
    blocks = F.pad(weights.float(), (0, -k % BLOCK)).view(rows, -1, BLOCK)
    scale = blocks.abs().amax(-1) / limit
    steps = torch.where(scale > 0, scale, 1).unsqueeze(-1)
    codes = (blocks / steps).round().clamp(-limit, limit) + 2 ** (bits - 1)
    return UnpackedRows(codes=codes.to(torch.uint8).view(rows, -1)[:, :k], scale=scale)
