"""Load a pair on the CUDA engine: choose a GPU, plan its memory, use a smaller plan if less is free."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from localdflash.backends.cuda import device as devices
from localdflash.backends.cuda.assembly import load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.cuda_sizes import BITS, MAX_ATTEMPTS, CudaSizes, budget_of, fallback_notice, plan_smaller
from localdflash.backends.cuda.device import free_unused_memory
from localdflash.backends.cuda.gpus import Gpu, choose_gpu
from localdflash.backends.cuda.identity import hash_kernels
from localdflash.backends.cuda.ops import KERNELS, Ops
from localdflash.backends.cuda.stepper import Stepper
from localdflash.base.errors import DeviceError, OutOfMemory
from localdflash.engine.lookup import LookupDrafter
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import NO_DRAFTER, Fit
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV, Parts, format_bytes, total
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running
from localdflash.models.shapes.fingerprint import mismatch


def load(files: LocalPair, options: Options, ops: Ops = KERNELS) -> Running:
    """Load a pair; raise NoDevice, OutOfMemory, ModelError or UsageError, and DeviceError if the GPU is lost."""
    gpus = devices.find_gpus(options.device)
    drafter = (files.drafter_safetensors or files.drafter_gguf) if options.draft else None
    sizes = CudaSizes(files.target, drafter, options.kv, options.drafter_bits)
    gpu, first = choose_gpu(gpus, sizes, options.context, budget_of, can_evict=options.can_evict)
    pair, planned, notice = _load(files.target, drafter, sizes, gpu, first, options, ops)
    stepper, notices = pair.stepper, [notice]
    if stepper.drafter:
        assert drafter is not None
        notices.append(mismatch(drafter, stepper.drafter.weights.config.trained_for, sizes.header))
    bits = BITS.get(planned.drafter, options.drafter_bits)
    return Running(
        pair=pair,
        cuda_drafters=[LookupDrafter.name, *(["dflash"] if stepper.drafter else [])] if options.draft else [],
        context=stepper.context,
        device="cuda",
        vocab_size=stepper.target.config.vocab_size,
        identity=(
            stepper.context,
            planned.drafter,
            options.kv,
            bits,
            options.native_fp4,
            options.cuda_ops,
            version("torch"),
            hash_kernels(),
        ),
        predicted_memory=planned.parts,
        measured=lambda: measure_parts(pair.stepper),
        notices=notices,
        close=lambda: _close(pair),
    )


def _load(
    target: Path, drafter: Path | None, sizes: CudaSizes, gpu: Gpu, first: Fit, options: Options, ops: Ops
) -> tuple[CudaPair, Fit, str]:
    """Load by the plan `first`, or by a smaller one if the GPU is full; return pair, plan, and a notice or ""."""
    device, planned, notice, failure = gpu.device, first, first.notice, ""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        bits = BITS.get(planned.drafter, options.drafter_bits)
        settings = replace(options, context=planned.context, drafter_bits=bits)
        drafting = drafter if planned.drafter != NO_DRAFTER else None
        try:
            pair = load_pair(target, drafting, device, settings, ops)
            return pair, planned, notice
        except OutOfMemory as error:
            failure = f"{error} ({format_bytes(total(planned.parts))} were planned)"
        free_unused_memory()  # outside `except`: the exception refers to the failed load's tensors
        if options.can_evict:
            break
        planned = plan_smaller(sizes, planned, options.context, budget_of(device), attempt)
        notice = fallback_notice(planned, first, failure)
    raise OutOfMemory(failure)


def _close(pair: CudaPair) -> None:
    with suppress(DeviceError):
        pair.close()
        free_unused_memory()


def measure_parts(stepper: Stepper) -> Parts:
    """Return the bytes of a pair's parts on a GPU; scratch is everything else that torch has reserved."""
    seen = set[int]()
    parts = {TARGET: _bytes_of(stepper.target, seen), TARGET_KV: _bytes_of(stepper.cache, seen)}
    if stepper.drafter:
        parts |= {DRAFTER: _bytes_of(stepper.drafter.weights, seen), DRAFTER_KV: _bytes_of(stepper.drafter.cache, seen)}
    return {**parts, SCRATCH: torch.cuda.memory_reserved(stepper.device) - total(parts)}


def _bytes_of(weights: object, seen: set[int]) -> int:
    """Return the bytes of an object's tensors, each storage counted once: target and drafter share some."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in _tensors(weights)}
    unseen = {address: storage.nbytes() for address, storage in storages.items() if address not in seen}
    seen.update(unseen)
    return sum(unseen.values())


def _tensors(part: object) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from _tensors(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _tensors(getattr(part, field.name))
