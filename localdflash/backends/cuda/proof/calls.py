"""The arguments of an operation as values, so that runs of it can be compared: copied, moved, and taken apart."""

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
WEIGHTS = (Planes, Rope)  # are read alone, and large
SCRATCH = frozenset({"scratch", "workspace"})  # parameters that hold nothing between two launches
UNPACKED = 1 << 25  # weights at once


def bound(op: Callable[..., None], given: tuple[Any, ...], named: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a call by the names of the operation's parameters."""
    return dict(signature(op).bind(*given, **named).arguments)


def copied(arguments: Arguments, device: torch.device | None = None) -> Arguments:
    """Return copies of the arguments, here or on another device; scratch and weights stay shared on this device."""
    return {name: value if name in SCRATCH else _copy(value, device) for name, value in arguments.items()}


def tensors(arguments: Arguments) -> dict[str, Tensor]:
    """Everything that a call could have written, by name: "x", "cache.k"."""
    written = {name: value for name, value in arguments.items() if name not in SCRATCH}
    return {name: tensor for key, value in written.items() for name, tensor in _walk(key, value)}


def planes_in(value: object) -> Iterator[Planes]:
    """Yield the matrices in arguments, or in a tree of weights."""
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
    """Run a reference over copies of the arguments and return them; on the CPU if the GPU has no room for float32."""
    mine = copied(arguments)
    try:
        with _dense(mine):
            reference(**mine)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        mine = copied(arguments, CPU)
        with _dense(mine):
            reference(**mine)
    return mine


@contextmanager
def _dense(arguments: Arguments) -> Iterator[None]:
    """Matrices in float32 for one reference alone: those of a whole model would not fit beside each other."""
    found = list(planes_in(arguments))
    try:
        for planes in found:
            vars(planes)["dense"] = unpacked(planes)  # where the cached property keeps it
        yield
    finally:
        for planes in found:
            vars(planes).pop("dense", None)


def unpacked(planes: Planes) -> Tensor:
    """`planes.dense`, made piece by piece: on the way to it a weight takes several times its four bytes."""
    p, step = planes, max(UNPACKED // planes.padded_k, 1)
    found = torch.empty(p.experts, p.n, p.k, device=p.base.device)
    for expert in range(p.experts):
        for first in range(0, p.n, step):
            last = min(first + step, p.n)
            found[expert, first:last] = dequantize(_piece(p, expert, first, last))
    return found.view(-1, p.k)


def _piece(planes: Planes, expert: int, first: int, last: int) -> Planes:

    def cut(tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        rows = tensor.shape[0] // planes.experts
        return tensor[expert * rows : (expert + 1) * rows, ..., first:last]

    p = planes
    parts = {name: cut(getattr(p, name)) for name in TENSORS}
    return replace(p, n=last - first, experts=1, **parts)


def _copy(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, Tensor):
        return value.clone() if device is None else value.to(device, copy=True)
    if isinstance(value, WEIGHTS) and device is None:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _copy(getattr(value, field.name), device) for field in fields(value)})
    if hasattr(value, "__dict__"):
        other = copy(value)
        vars(other).update({name: _copy(part, device) for name, part in vars(value).items()})
        return other
    return value


def _walk(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif not isinstance(value, WEIGHTS) and hasattr(value, "__dict__"):
        for key, part in vars(value).items():
            yield from _walk(f"{name}.{key}", part)
