"""What a loaded pair takes, measured: the truth beside `LoadedPair.predicted`.

llama.cpp: weights and caches as the library counts them, `program` is the rest of this process's resident memory, so
that all parts together are what the system sees. Our CPU engine: every array that it holds, and `program` likewise.
CUDA: every tensor that the engine holds, and what torch's allocator holds beyond them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from localdflash.backend.parts import DRAFTER, DRAFTER_KV, PROGRAM, SCRATCH, TARGET, TARGET_KV, Parts, total

if TYPE_CHECKING:
    from localdflash.loading.load import LoadedPair


def measured(loaded: "LoadedPair") -> Parts:
    """Bytes of each part, now."""
    if loaded.backend == "cuda":
        return _on_cuda(loaded.pair)
    parts = {}
    if loaded.backend == "llama.cpp":
        parts = _in_llamacpp(loaded)
    elif loaded.backend == "cpu":
        parts = _on_cpu(loaded)
    return {**parts, PROGRAM: max(resident() - total(parts), 0)}


def resident() -> int:
    """Bytes of memory that this process has in use."""
    return int(psutil.Process().memory_info().rss)


def _in_llamacpp(loaded: "LoadedPair") -> Parts:
    import llama_cpp.llama_cpp as api

    from localdflash.llamacpp.drafter import LlamaCppDFlashDrafter
    from localdflash.llamacpp.sizes import sizes_said

    if not loaded.predicted:  # nor does llama.cpp say now what it takes
        return {}
    target: Any = loaded.target
    said = sizes_said(loaded.said_of_target)
    parts = {TARGET: api.llama_model_size(target.model), TARGET_KV: said.cache, SCRATCH: said.scratch}
    for drafter in loaded.pair.drafters:  # type: ignore[attr-defined]  # llama.cpp's pair is a HostPair
        if isinstance(drafter, LlamaCppDFlashDrafter):
            said = sizes_said(loaded.said_of_drafter)
            parts |= {DRAFTER: api.llama_model_size(drafter.model), DRAFTER_KV: said.cache}
            parts[SCRATCH] += said.scratch
        elif drafter.reads_taps:  # torch's, with the target's embedding and head
            seen = set[int]()
            parts |= {DRAFTER_KV: sum(_storages(drafter.context, seen)), DRAFTER: sum(_storages(drafter, seen))}
    return parts


def _on_cpu(loaded: "LoadedPair") -> Parts:
    target: Any = loaded.target
    drafters: Any = loaded.pair.drafters  # type: ignore[attr-defined]  # a HostPair, too
    seen = set[int]()
    parts = {TARGET: sum(_arrays(target.packed, seen)), TARGET_KV: sum(_arrays(target.cache, seen))}
    parts[SCRATCH] = sum(_arrays(target, seen))
    for drafter in drafters:
        if drafter.reads_taps:
            parts |= {DRAFTER: sum(_arrays(drafter.packed, seen)), DRAFTER_KV: sum(_arrays(drafter.cache, seen))}
            parts[SCRATCH] += sum(_arrays(drafter, seen))
    return parts


def _arrays(thing: Any, seen: set[int]) -> Iterator[int]:
    """Bytes of every array that can be reached, each once."""
    if id(thing) in seen or isinstance(thing, type):
        return
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        yield thing.nbytes
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from _arrays(item, seen)
    elif hasattr(thing, "__dict__"):
        for item in vars(thing).values():
            yield from _arrays(item, seen)


def _on_cuda(pair: Any) -> Parts:
    import torch

    stepper, seen = pair.stepper, set[int]()
    parts = {TARGET: sum(_storages(stepper.target, seen)), TARGET_KV: sum(_storages(stepper.cache, seen))}
    if stepper.block:
        parts |= {
            DRAFTER: sum(_storages(stepper.block.weights, seen)),
            DRAFTER_KV: sum(_storages(stepper.block.cache, seen)),
        }
    if stepper.device.type != "cuda":
        return {**parts, SCRATCH: sum(_storages(stepper, seen))}
    return {**parts, SCRATCH: torch.cuda.memory_reserved(stepper.device) - total(parts)}


def _storages(thing: Any, seen: set[int]) -> Iterator[int]:
    """Bytes of every tensor that can be reached, each storage once."""
    import torch

    if id(thing) in seen or isinstance(thing, type):
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage.nbytes()
    elif isinstance(thing, dict):
        for item in thing.values():
            yield from _storages(item, seen)
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from _storages(item, seen)
    elif hasattr(thing, "__dict__"):
        yield from _storages(vars(thing), seen)
