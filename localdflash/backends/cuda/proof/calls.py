"""Copies, moves and traverses the arguments of an operation's call, so that runs can be compared."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.repack.gguf_planes import TENSORS
from localdflash.kernels.cuda.planes import Planes, dequantize
from localdflash.kernels.cuda.rope import Rope

Arguments = dict[str, Any]
CPU = torch.device("cpu")
WEIGHTS = (Planes, Rope)  # large and read-only
SCRATCH = frozenset({"scratch", "workspace"})  # parameters whose content no later launch reads
CHUNK_WEIGHTS = 1 << 25  # weights that `unpack_planes` unpacks at once


def bind_arguments(op: Callable[..., None], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a call by parameter name."""
    return dict(signature(op).bind(*args, **kwargs).arguments)


def copy_arguments(arguments: Arguments, device: torch.device | None = None) -> Arguments:
    """Return copies of the arguments, on `device` if given; scratch stays shared, and without `device` weights too."""
    return {name: value if name in SCRATCH else _copy(value, device) for name, value in arguments.items()}


def writable_tensors(arguments: Arguments) -> dict[str, Tensor]:
    """Return all tensors that a call could have written, by dotted name, such as "x" or "cache.k"."""
    written = {name: value for name, value in arguments.items() if name not in SCRATCH}
    return {name: tensor for key, value in written.items() for name, tensor in _walk(key, value)}


def planes_in(value: object) -> Iterator[Planes]:
    """Yield the planes in a tree of arguments or weights."""
    if isinstance(value, Planes):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from planes_in(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from planes_in(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from planes_in(getattr(value, field.name))


def run_reference(reference: Callable[..., None], arguments: Arguments) -> Arguments:
    """Run a reference on copies of the arguments and return the copies, on the CPU if the GPU's memory is too small."""
    copies = copy_arguments(arguments)
    try:
        with _dense(copies):
            reference(**copies)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        copies = copy_arguments(arguments, CPU)
        with _dense(copies):
            reference(**copies)
    return copies


@contextmanager
def _dense(arguments: Arguments) -> Iterator[None]:
    """Cache `Planes.dense` of the arguments in the context only: a whole dense model would not fit into memory."""
    matrices = [planes for planes in planes_in(arguments) if planes.scaling != "product"]  # which has no weights
    try:
        for planes in matrices:
            vars(planes)["dense"] = unpack_planes(planes)  # where the cached property `dense` looks it up
        yield
    finally:
        for planes in matrices:
            vars(planes).pop("dense", None)


def unpack_planes(planes: Planes) -> Tensor:
    """Return `planes.dense`, computed in chunks: temporary tensors take several times the four bytes of a weight."""
    p, step = planes, max(CHUNK_WEIGHTS // planes.padded_k, 1)
    dense = torch.empty(p.experts, p.n, p.k, device=p.base.device)
    for expert in range(p.experts):
        for first in range(0, p.n, step):
            last = min(first + step, p.n)
            dense[expert, first:last] = dequantize(_piece(p, expert, first, last))
    return dense.view(-1, p.k)


def _piece(planes: Planes, expert: int, first: int, last: int) -> Planes:
    def cut(tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        rows = tensor.shape[0] // planes.experts
        return tensor[expert * rows : (expert + 1) * rows, ..., first:last]

    parts = {name: cut(getattr(planes, name)) for name in TENSORS}
    return replace(planes, n=last - first, experts=1, **parts)


def _copy(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, Tensor):
        return value.clone() if device is None else value.to(device, copy=True)
    if isinstance(value, WEIGHTS) and device is None:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _copy(getattr(value, field.name), device) for field in fields(value)})
    if hasattr(value, "__dict__"):
        copied = copy(value)
        vars(copied).update({name: _copy(part, device) for name, part in vars(value).items()})
        return copied
    return value


def _walk(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif not isinstance(value, WEIGHTS) and hasattr(value, "__dict__"):
        for key, part in vars(value).items():
            yield from _walk(f"{name}.{key}", part)
