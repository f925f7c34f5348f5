"""Decides where a pair lies: all of it on the GPU, else its experts in memory, else some layers, else no drafter.

What fits is measured with the context that was asked for, or with a comfortable one; of what is left the context
grows. Nothing is allocated for it.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from localdflash.backends.llamacpp.devices import devices, find_gpu
from localdflash.backends.llamacpp.llama_sizes import LlamaCppSizes
from localdflash.backends.llamacpp.llama_target import check_context
from localdflash.backends.llamacpp.placement import PROCESSOR, Device, Placement
from localdflash.base.errors import ModelError, OutOfMemory
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.memory.fit import COMFORTABLE, NO_DRAFTER, ROOMY, Fit, MemoryBudget, Sizes, fit, largest_context
from localdflash.models.memory.parts import Parts, gigabytes
from localdflash.models.shapes.drafter_kind import block_count
from localdflash.models.weights.gguf import read_header

Needs = Callable[[Placement], Sizes]


@dataclass(frozen=True)
class Placed:
    """A placement, and what fits there; None if loading itself has to say what is wrong with the files."""

    placement: Placement
    fit: Fit | None = None
    notice: str = ""


def plan(target: Path, drafter: Path | None, options: Options) -> Placed:
    """Where to load a pair as `options` say. NoDevice, OutOfMemory, ModelError; UsageError for too long a context."""
    device = chosen_gpu(options)
    try:
        if not device:
            return _on_processor(target, drafter, options)
        with ExitStack() as stack:
            sizes = _Cached(target, drafter, stack)
            steps = ladder(target, device, options)
            check_context(target, options.context, sizes(steps[0]).trained)
            return place(sizes, steps, device.budget(), options.context, roomy=options.roomy)
    except (OutOfMemory, ModelError) as error:
        no_room_yet = options.roomy and isinstance(error, OutOfMemory)
        if options.device != "auto" or not device or no_room_yet:
            raise
        on_processor = _on_processor(target, drafter, options)
        return replace(on_processor, notice=f"llama.cpp runs on the processor: {error}")


def chosen_gpu(options: Options) -> Device | None:
    """The GPU that `options` mean; None is the processor. NoDevice if one is asked for that is not there."""
    if options.device == "cpu" or options.gpu_layers == 0:
        return None
    if options.device != "auto":
        return find_gpu(options.device)
    return next(iter(devices()), None)


def _on_processor(target: Path, drafter: Path | None, options: Options) -> Placed:
    try:
        with LlamaCppSizes(target, drafter) as needed:
            check_context(target, options.context, needed.trained)
            planned = fit(needed, free.system_budget(), options.context, roomy=options.roomy)
            return Placed(PROCESSOR, planned)
    except ModelError:  # loading says it better, or llama.cpp does not report its sizes
        return Placed(PROCESSOR)


class _Cached:
    """The sizes of a pair by its placement, each planned once."""

    def __init__(self, target: Path, drafter: Path | None, stack: ExitStack) -> None:
        self._files, self._stack = (target, drafter), stack
        self._known: dict[Placement, LlamaCppSizes] = {}

    def __call__(self, placement: Placement) -> LlamaCppSizes:
        if placement not in self._known:
            self._known[placement] = self._stack.enter_context(LlamaCppSizes(*self._files, placement))
        return self._known[placement]


def ladder(target: Path, device: Device, options: Options) -> Sequence[Placement]:
    """The placements to try, best first. A GPU that nobody named gets at least half of the layers, or none."""
    header = read_header(target)
    layers = block_count(header) + 1
    most = layers if options.gpu_layers < 0 else min(options.gpu_layers, layers)
    least = most if options.gpu_layers >= 0 else (layers + 1) // 2 if options.device in ("auto", "gpu") else 1
    mixture = any("_exps" in name for name in header.tensors)
    first = layers - most  # block on the device
    experts = range(1, layers - first) if mixture else ()
    steps = [Placement(device, most), *(Placement(device, most, range(first, first + kept)) for kept in experts)]
    for fewer in range(most - 1, least - 1, -1):
        first = layers - fewer
        steps.append(Placement(device, fewer, range(first, layers - 1) if mixture else range(0)))
    return steps


def place(
    needs: Needs, steps: Sequence[Placement], budget: MemoryBudget, wanted: int, *, roomy: bool = False
) -> Placed:
    """The first of the steps that fits, with the drafter where that is possible; OutOfMemory says what lacks.

    If it is to be `roomy`, that is the first step with the drafter and `ROOMY` tokens, or as many as were asked for.
    """
    full = needs(steps[0])
    most = wanted or full.trained
    enough = wanted or min(most, ROOMY if roomy else COMFORTABLE)
    if roomy:
        steps = steps[:1]
    for drafter in full.drafters[:1] if roomy else full.drafters:
        if (found := _first(needs, steps, drafter, budget, enough)) is None:
            continue
        sizes = needs(found)
        context = largest_context(sizes, drafter, budget, most)
        chosen = Fit(drafter, context, sizes.parts(context, drafter))
        return Placed(found, replace(chosen, notice=_notice(needs, steps, Placed(found, chosen), budget, most)))
    last, layers = steps[-1], steps[0].layers
    memory, needed = budget.tight(needs(last).parts(enough, full.drafters[0] if roomy else NO_DRAFTER))
    what = f"all {layers} layers" if last.layers == layers else f"{last.layers} of {layers} layers"
    raise OutOfMemory(
        f"{what} and a context of {enough} tokens need {gigabytes(needed)} ({gigabytes(memory.margin)} of it as"
        " margin),"
        f" {gigabytes(memory.free)} of {memory.what} are free: --device cpu, --gpu-layers or a smaller model may do"
    )


def _first(
    needs: Needs, steps: Sequence[Placement], drafter: str, budget: MemoryBudget, context: int
) -> Placement | None:
    """The first step that fits the GPU, if it fits the memory beside it: later ones take less of the GPU, and more of
    that. None if none fits.
    """

    def parts(index: int) -> Parts:
        return needs(steps[index]).parts(context, drafter)

    index = bisect_left(range(len(steps)), True, key=lambda at: budget.needed(parts(at)) <= budget.free)
    return steps[index] if index < len(steps) and budget.holds(parts(index)) else None


def _notice(needs: Needs, steps: Sequence[Placement], placed: Placed, budget: MemoryBudget, most: int) -> str:
    chosen, where, full = placed.fit, placed.placement, steps[0]
    assert chosen
    asked = needs(full).drafters[0]
    said = []
    if where.layers < full.layers:
        said.append(f"{where.layers} of {full.layers} layers are on the GPU")
    if where.experts:
        said.append(f"the experts of {len(where.experts)} layers are in memory")
    if chosen.drafter != asked:
        said.append("the drafter was left out")
    if chosen.context < most:
        said.append(f"the context has {chosen.context} of {most} tokens")
    if not said:
        return ""
    memory, needed = budget.tight(needs(full).parts(chosen.context, asked))
    return f"{', '.join(said)}: all of it needs {gigabytes(needed)}, {gigabytes(memory.free)} of {memory.what} are free"
