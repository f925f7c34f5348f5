"""Loads GGUF tensors as planes: the file's codes and scales, rearranged on the device.

Quantized types are exact, except that NVFP4's product of two scales is rounded to float16. Float types become int8.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from localdflash.backends.cuda.repack.ggml_blocks import FORMATS, UnpackedRows, empty, fill, half_scales
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import COLUMNS, Planes, pack_halves, unpack_halves
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader, load_blocks, load_tensor

TENSORS = ("base", "high", "scale", "supers", "minimum")  # tensors of `Planes`, each [..., n]


def planes_of_blocks(
    raw: Tensor, ggml_type: GGMLType, n: int, k: int, experts: int = 1, factors: Tensor | None = None
) -> Planes:
    """Repack raw blocks of `experts` matrices [n, k] on their device; NVFP4 scales are multiplied by `factors`."""
    if ggml_type not in FORMATS:
        raise ModelError(f"no kernel reads {ggml_type.name}; use `--backend llama.cpp`")
    layout, unpack = FORMATS[ggml_type]
    planes = empty(layout, n, k, experts, raw.device)
    for expert, matrix in enumerate(raw.view(experts, n, k // ggml_type.block_weights, ggml_type.block_bytes)):

        def unpack_slice(rows: slice, matrix: Tensor = matrix, expert: int = expert) -> UnpackedRows:
            unpacked = unpack(matrix[rows])
            if factors is None:
                return unpacked
            return replace(unpacked, scale=half_scales(unpacked.scale.float() * factors[expert]))

        fill(planes, expert, unpack_slice)
    return planes


def load_planes(
    header: GGUFHeader,
    names: Sequence[str],
    device: torch.device | str,
    interleave: bool = False,
    row_order: Tensor | None = None,
) -> Planes:
    """Load matrices [n, k], or stacks of experts, of one type as one matrix: concatenated, or interleaved row by row.

    With `row_order`, return its rows `row_order[i]`. ModelError for missing or unsupported tensors, or other layouts.
    """
    parts = [_load(header, name, torch.device(device)) for name in names]
    sizes = {part.n for part in parts}
    if len({(_layout(part), part.k, part.experts) for part in parts}) > 1 or (interleave and len(sizes) > 1):
        found = ", ".join(f"{name} ({header.tensors[name].ggml_type.name})" for name in names)
        raise ModelError(f"{header.path}: the tensors {found} cannot form one matrix; use `--backend llama.cpp`")
    if interleave:
        alternating = torch.arange(parts[0].n * len(parts)).view(len(parts), -1).t().flatten()
        row_order = alternating if row_order is None else alternating[row_order]
    return join(parts, row_order)


def join(parts: Sequence[Planes], row_order: Tensor | None = None) -> Planes:
    """Concatenate planes of one layout along n; with `row_order` (int64), row i is the former row `row_order[i]`."""
    first = parts[0]
    if len({(_layout(part), part.k, part.experts) for part in parts}) > 1:
        raise ValueError("only planes of one layout, depth and number of experts can be joined")
    if len(parts) == 1 and row_order is None:
        return first
    order = None if row_order is None else row_order.to(first.base.device)
    n = sum(part.n for part in parts) if order is None else len(order)

    def joined(tensors: Sequence[Tensor | None]) -> Any:
        own = [tensor[..., : part.n] for tensor, part in zip(tensors, parts, strict=True) if tensor is not None]
        if not own:
            return None
        columns = torch.cat(own, -1)
        return F.pad(columns if order is None else columns[..., order], (0, -n % COLUMNS))

    parts_of = {name: [getattr(part, name) for part in parts] for name in TENSORS}
    return replace(first, n=n, **{name: joined(tensors) for name, tensors in parts_of.items()})


def rows_of(planes: Planes, ids: Tensor) -> Planes:
    """Return the rows `ids` (int [size]) of an LM head, bit-identical, for a drafter with a reduced vocabulary."""
    if planes.experts != 1:
        raise ModelError(f"a head is one matrix, not {planes.experts} experts; use the full vocabulary")
    columns = ids.long().to(planes.base.device)
    missing = -len(columns) % COLUMNS

    def select(tensor: Tensor | None) -> Any:
        return None if tensor is None else F.pad(tensor.index_select(-1, columns), (0, missing))

    return replace(planes, n=len(columns), **{name: select(getattr(planes, name)) for name in TENSORS})


def scaled(planes: Planes, power_of_two: float) -> Planes:
    """Multiply all weights, exactly, through their float scales; ModelError if float16 overflows."""
    if planes.scaling == "block":
        return replace(planes, scale=planes.scale * power_of_two)
    if planes.scaling == "half4":
        minimum = None if planes.minimum is None else _scaled_halves(planes.minimum, power_of_two)
        return replace(planes, scale=_scaled_halves(planes.scale, power_of_two), minimum=minimum)
    assert planes.supers is not None
    return replace(planes, supers=_scaled_halves(planes.supers, power_of_two))


def _scaled_halves(words: Tensor, power_of_two: float) -> Tensor:
    products = [half * power_of_two for half in unpack_halves(words)]
    result: Tensor = pack_halves(*products)
    if not all(torch.equal(half, product) for half, product in zip(unpack_halves(result), products, strict=True)):
        raise ModelError(f"float16 cannot hold the weights' scales times {power_of_two}; use `--backend llama.cpp`")
    return result


def _layout(planes: Planes) -> tuple[object, ...]:
    """Return the properties that planes must share to form one matrix."""
    p = planes
    return p.block_words, p.high_bits, p.scaling, p.zero, p.code, p.minimum is None


def _load(header: GGUFHeader, name: str, device: torch.device) -> Planes:
    info = header.tensors.get(name)
    if info is None:
        raise ModelError(f"{header.path}: tensor {name} is missing; convert the model again")
    if len(info.shape) not in (2, 3):
        raise ModelError(f"{header.path}: tensor {name} is no matrix but {list(info.shape)}; convert the model again")
    experts = info.shape[0] if len(info.shape) == 3 else 1
    factors = _second_scales(header, name, experts) if info.ggml_type == GGMLType.NVFP4 else None
    factors = None if factors is None else factors.to(device)
    raw = load_blocks(header, name).to(device)
    n, k = info.shape[-2:]
    try:
        return planes_of_blocks(raw, info.ggml_type, n, k, experts, factors)
    except ModelError as error:
        raise ModelError(f"{header.path}: tensor {name}: {error}") from error


def _second_scales(header: GGUFHeader, name: str, experts: int) -> Tensor | None:
    """Return NVFP4's second scales, one per matrix, from the tensor `x.scale` for `x.weight`; None without it."""
    scale_name = name.removesuffix("weight") + "scale"
    if scale_name not in header.tensors:
        return None
    factors = load_tensor(header, scale_name).flatten()
    if len(factors) != experts:
        found = f"tensor {scale_name} has {len(factors)} numbers (expected {experts})"
        raise ModelError(f"{header.path}: {found}; convert the model again")
    return factors
