"""A pair on the CUDA engine: a GPU found, memory planned before it is taken, both models put on the device."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib.metadata import version

import torch
from torch import Tensor

from localdflash.backend.fit import NO_DRAFTER, fit
from localdflash.backend.options import Options
from localdflash.backend.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV, Parts, total
from localdflash.backend.running import Running
from localdflash.cuda import device as devices
from localdflash.cuda.assembly import CudaSettings, load_pair
from localdflash.cuda.sizes import BITS, CudaSizes
from localdflash.cuda.stepper import Stepper
from localdflash.engine.lookup import LookupDrafter
from localdflash.model.fingerprint import mismatch
from localdflash.pairs.pair import LocalPair


def load(files: LocalPair, options: Options) -> Running:
    """The pair as `options` say. NoDevice says why there is no GPU; OutOfMemory, ModelError and UsageError."""
    device = devices.find_device()
    drafter = (files.drafter_safetensors or files.drafter_gguf) if options.draft else None
    sizes = CudaSizes(files.target, drafter, options.kv, options.drafter_bits)
    planned = fit(sizes, devices.gpu_budget(), options.context, roomy=options.roomy)
    drafter = drafter if planned.drafter != NO_DRAFTER else None
    bits = BITS.get(planned.drafter, options.drafter_bits)
    settings = CudaSettings(planned.context, options.kv, options.draft, bits, options.native_fp4)
    pair = load_pair(files.target, drafter, device, settings, progress=options.progress)
    stepper, notices = pair.stepper, [planned.notice]
    if drafter and stepper.block:
        notices.append(mismatch(drafter, stepper.block.weights.config.trained_for, sizes.header))
    return Running(
        pair=pair,
        on_device=[LookupDrafter.name, *(["dflash"] if stepper.block else [])] if options.draft else [],
        context=stepper.context,
        device="cuda",
        vocab_size=None,
        identity=(stepper.context, planned.drafter, options.kv, bits, options.native_fp4, version("torch")),
        predicted=planned.parts,
        measured=lambda: measured(stepper),
        notices=notices,
        close=lambda: None,
    )


def measured(stepper: Stepper) -> Parts:
    """Bytes of what the engine holds on a GPU; scratch is all that torch has reserved besides."""
    seen = set[int]()
    parts = {TARGET: _bytes_of(stepper.target, seen), TARGET_KV: _bytes_of(stepper.cache, seen)}
    if stepper.block:
        parts |= {
            DRAFTER: _bytes_of(stepper.block.weights, seen),
            DRAFTER_KV: _bytes_of(stepper.block.cache, seen),
        }
    return {**parts, SCRATCH: torch.cuda.memory_reserved(stepper.device) - total(parts)}


def _bytes_of(weights: object, seen: set[int]) -> int:
    """Bytes of an object's tensors, each storage counted once: target and drafter share some."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in _tensors(weights)}
    fresh = {address: storage.nbytes() for address, storage in storages.items() if address not in seen}
    seen.update(fresh)
    return sum(fresh.values())


def _tensors(part: object) -> Iterator[Tensor]:
    """The tensors of a tree of dataclasses and tuples."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from _tensors(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _tensors(getattr(part, field.name))
