"""Chooses a pair's placement: all on the GPU, else experts in main memory, else fewer layers, else no drafter."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from localdflash.backends.llamacpp.llama_library import devices, find_gpu
from localdflash.backends.llamacpp.llama_sizes import LlamaCppSizes
from localdflash.backends.llamacpp.placement import PROCESSOR, Device, Placement
from localdflash.base.errors import ModelError, OutOfMemory
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.memory.fit import (
    COMFORTABLE,
    NO_DRAFTER,
    UNREDUCED_CONTEXT,
    Fit,
    MemoryBudget,
    MemorySizes,
    check_context,
    fit,
    largest_context,
)
from localdflash.models.memory.parts import Parts, format_bytes
from localdflash.models.shapes.gguf_config import count_layers
from localdflash.models.weights.gguf import read_header

Needs = Callable[[Placement], MemorySizes]  # returns the memory that the pair needs in a placement


@dataclass(frozen=True)
class PlacementPlan:
    """Placement, and what fits there; `fit` is None if the sizes are unknown and loading must report the problem."""

    placement: Placement
    fit: Fit | None = None
    notice: str = ""


def plan_placement(target: Path, drafter: Path | None, options: Options) -> PlacementPlan:
    """Choose where to load a pair; raise NoDevice, OutOfMemory, ModelError or UsageError."""
    device = choose_gpu(options)
    try:
        if not device:
            return _on_processor(target, drafter, options)
        if options.kv == "k8v4":  # many builds would compute attention on the processor, row by row over the bus
            raise ModelError("--kv k8v4: llama.cpp has it only on the processor; use --kv int8")
        with ExitStack() as stack:

            @cache
            def sizes(placement: Placement) -> LlamaCppSizes:
                return stack.enter_context(LlamaCppSizes(target, drafter, placement, options.kv))

            placements = list_placements(target, device, options)
            check_context(options.context, sizes(placements[0]).trained, target.name)
            return choose_placement(sizes, placements, device.budget(), options.context, can_evict=options.can_evict)
    except (OutOfMemory, ModelError) as error:
        no_room_yet = options.can_evict and isinstance(error, OutOfMemory)
        if options.device != "auto" or not device or no_room_yet:
            raise
        on_processor = _on_processor(target, drafter, options)
        return replace(on_processor, notice=f"llama.cpp runs on the processor: {error}")


def choose_gpu(options: Options) -> Device | None:
    """Return the GPU of the options, None for the processor; raise NoDevice if the requested GPU is missing."""
    if options.device == "cpu" or options.gpu_layers == 0:
        return None
    if options.device != "auto":
        return find_gpu(options.device)
    return next(iter(devices()), None)


def _on_processor(target: Path, drafter: Path | None, options: Options) -> PlacementPlan:
    try:
        with LlamaCppSizes(target, drafter, kv=options.kv) as sizes:
            check_context(options.context, sizes.trained, target.name)
            memory_fit = fit(sizes, free.system_budget(), options.context, can_evict=options.can_evict)
            return PlacementPlan(PROCESSOR, memory_fit)
    except ModelError:  # loading reports the error, or llama.cpp reports no sizes
        return PlacementPlan(PROCESSOR)


def list_placements(target: Path, device: Device, options: Options) -> Sequence[Placement]:
    """Return the placements to try, best first. A GPU that was not named gets at least half of the layers, or none."""
    header = read_header(target)
    layers = count_layers(header) + 1
    max_layers = layers if options.gpu_layers < 0 else min(options.gpu_layers, layers)
    half = (layers + 1) // 2 if options.device in ("auto", "gpu") else 1
    min_layers = max_layers if options.gpu_layers >= 0 else half
    is_mixture = any("_exps" in name for name in header.tensors)
    first = layers - max_layers  # first layer on the device
    experts = range(1, layers - first) if is_mixture else ()
    placements = [Placement(device, max_layers)]
    placements += [Placement(device, max_layers, range(first, first + count)) for count in experts]
    for fewer in range(max_layers - 1, min_layers - 1, -1):
        first = layers - fewer
        placements.append(Placement(device, fewer, range(first, layers - 1) if is_mixture else range(0)))
    return placements


def choose_placement(
    needs: Needs, placements: Sequence[Placement], budget: MemoryBudget, requested: int, *, can_evict: bool = False
) -> PlacementPlan:
    """Choose the first placement that fits, with the drafter if possible; raise OutOfMemory if none fits.

    If `can_evict`, try only the first placement, with the drafter and the requested context or `UNREDUCED_CONTEXT`.
    """
    full_sizes = needs(placements[0])
    max_context = requested or full_sizes.trained
    min_context = requested or min(max_context, UNREDUCED_CONTEXT if can_evict else COMFORTABLE)
    if can_evict:
        placements = placements[:1]
    for drafter in full_sizes.drafters[:1] if can_evict else full_sizes.drafters:
        if (placement := _first_fitting(needs, placements, drafter, budget, min_context)) is None:
            continue
        sizes = needs(placement)
        context = largest_context(sizes, drafter, budget, max_context)
        chosen = Fit(drafter, context, sizes.parts(context, drafter))
        notice = _describe_changes(needs, placements, PlacementPlan(placement, chosen), budget, max_context)
        return PlacementPlan(placement, replace(chosen, notice=notice))
    last, layers = placements[-1], placements[0].layers
    drafter = full_sizes.drafters[0] if can_evict else NO_DRAFTER
    memory, needed = budget.find_tightest(needs(last).parts(min_context, drafter))
    what = f"all {layers} layers" if last.layers == layers else f"{last.layers} of {layers} layers"
    raise OutOfMemory(
        f"{what} and a context of {min_context} tokens need {format_bytes(needed)}"
        f" ({format_bytes(memory.margin)} as margin), {format_bytes(memory.free)} of {memory.what} are free;"
        " try --device cpu, --gpu-layers or a smaller model"
    )


def _first_fitting(
    needs: Needs, placements: Sequence[Placement], drafter: str, budget: MemoryBudget, context: int
) -> Placement | None:
    """Return the first placement that fits GPU and main memory, or None. Later placements use less GPU memory."""

    def parts(index: int) -> Parts:
        return needs(placements[index]).parts(context, drafter)

    index = bisect_left(range(len(placements)), True, key=lambda at: budget.needed(parts(at)) <= budget.free)
    return placements[index] if index < len(placements) and budget.holds(parts(index)) else None


def _describe_changes(
    needs: Needs, placements: Sequence[Placement], plan: PlacementPlan, budget: MemoryBudget, max_context: int
) -> str:
    chosen, placement, full = plan.fit, plan.placement, placements[0]
    assert chosen
    requested = needs(full).drafters[0]
    changes = []
    if placement.layers < full.layers:
        changes.append(f"{placement.layers} of {full.layers} layers are on the GPU")
    if placement.experts:
        changes.append(f"the experts of {len(placement.experts)} of {placement.layers - 1} layers are in memory")
    if chosen.drafter != requested:
        changes.append("the drafter was left out")
    if chosen.context < max_context:
        changes.append(f"the context has {chosen.context} of {max_context} tokens")
    if not changes:
        return ""
    memory, needed = budget.find_tightest(needs(full).parts(chosen.context, requested))
    sizes = f"all of it needs {format_bytes(needed)}, {format_bytes(memory.free)} of {memory.what} are free"
    return f"{', '.join(changes)}: {sizes}"
