"""Fit a pair into memory: the drafter is reduced or left out before the context is cut, and a notice says so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from localdflash.base.errors import OutOfMemory, UsageError
from localdflash.models.memory.parts import TARGET, Parts, format_bytes, split_host_parts, total

NO_DRAFTER = "none"
UNCHANGED = "unmodified"  # form of an unreduced drafter
STEP = 256  # tokens; an automatic context is a multiple
MIN_CONTEXT = 512  # tokens of the shortest context
MAX_OVERSHOOT = 4  # needed memory / free memory, above which the search halves the context
UNREDUCED_CONTEXT = 8192  # tokens; if they do not fit, the daemon unloads an idle pair
COMFORTABLE = 4096  # tokens; the drafter is reduced to keep this much context, if no context was requested

# Bits per weight of whole files, as published by llama.cpp for 8B models.
QUANTIZATIONS = {
    "F16": 16.0,
    "Q8_0": 8.5,
    "Q6_K": 6.56,
    "Q5_K_M": 5.70,
    "Q4_K_M": 4.89,
    "Q4_0": 4.66,
    "Q3_K_M": 4.00,
    "Q2_K": 3.16,
}


class MemorySizes(Protocol):
    """Memory of one pair on one backend."""

    @property
    def trained(self) -> int:
        """Return the tokens of context that the target was trained for."""

    @property
    def drafters(self) -> Sequence[str]:
        """Return the forms of the drafter, from the requested one down to `NO_DRAFTER`."""

    def parts(self, context: int, drafter: str) -> Parts:
        """Return the bytes by part, with this context and this form of the drafter."""


@dataclass(frozen=True)
class MemoryBudget:
    """Free bytes of `what`; `margin` stays free, `spare` too unless a context is requested. `beside`: host memory."""

    free: int
    margin: int
    what: str
    beside: "MemoryBudget | None" = None
    spare: int = 0

    def holds(self, parts: Parts) -> bool:
        """Return whether all parts and the margins fit."""
        memory, needed = self.find_tightest(parts)
        return needed <= memory.free

    def find_tightest(self, parts: Parts) -> "tuple[MemoryBudget, int]":
        """Return this budget and the bytes needed, or the host memory's budget and bytes if only that is too small."""
        needed = self.needed(parts)
        if not self.beside:
            return self, needed
        others = split_host_parts(parts)[1]
        fits_here, fits_beside = needed <= self.free, self.beside.holds(others)
        return self.beside.find_tightest(others) if fits_here and not fits_beside else (self, needed)

    def needed(self, parts: Parts) -> int:
        """Return the bytes that the parts need in this memory, margin included."""
        return total(split_host_parts(parts)[0] if self.beside else parts) + self.margin


@dataclass(frozen=True)
class Fit:
    """Drafter and context to load. `notice` is a line for the user if that is less than requested, or empty."""

    drafter: str
    context: int
    parts: Parts
    notice: str = ""


def largest_context(sizes: MemorySizes, drafter: str, budget: MemoryBudget, max_context: int) -> int:
    """Return the largest context that fits: `max_context`, else a multiple of `STEP`, else 0.

    The search starts at the top, because less context does not always need less memory.
    """
    parts = sizes.parts(max_context, drafter)
    if budget.holds(parts):
        return max_context
    fits = -(-max_context // STEP)
    while True:
        memory, needed = budget.find_tightest(parts)
        too_many, fits = fits, fits // 2 if needed > MAX_OVERSHOOT * memory.free else fits * 7 // 8
        if not fits or budget.holds(parts := sizes.parts(fits * STEP, drafter)):
            break
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if budget.holds(sizes.parts(middle * STEP, drafter)):
            fits = middle
        else:
            too_many = middle
    return fits * STEP


def check_context(context: int, trained: int, model: str = "the model") -> None:
    """Raise UsageError for a context below 8 tokens or beyond the trained one; 0 is the trained context."""
    if not 8 <= (context or trained) <= trained:
        raise UsageError(f"context of {context} tokens: expected 8 to {trained}, which {model} was trained for")


def fit(sizes: MemorySizes, budget: MemoryBudget, requested: int, *, can_evict: bool = False) -> Fit:
    """Return the drafter and context to load for a requested context (0: up to the trained one), or OutOfMemory."""
    max_context = requested or sizes.trained
    min_context = requested or min(max_context, COMFORTABLE)
    largest, drafter = 0, NO_DRAFTER
    for drafter in sizes.drafters:
        largest = largest_context(sizes, drafter, budget, max_context)
        if largest >= min_context:
            break
    else:
        if requested or largest < min(max_context, MIN_CONTEXT):
            raise OutOfMemory(_refusal(sizes, budget, drafter, max_context, largest))
    if can_evict and (drafter != sizes.drafters[0] or largest < min(max_context, UNREDUCED_CONTEXT)):
        raise OutOfMemory(_refusal(sizes, budget, drafter, min(max_context, UNREDUCED_CONTEXT), largest))
    if not requested and budget.spare and largest > COMFORTABLE:
        spare_budget = replace(budget, margin=budget.margin + budget.spare)
        largest = max(largest_context(sizes, drafter, spare_budget, largest), COMFORTABLE)
    result = Fit(drafter, largest, sizes.parts(largest, drafter))
    return replace(result, notice=_notice(sizes, budget, result, max_context))


def _notice(sizes: MemorySizes, budget: MemoryBudget, result: Fit, max_context: int) -> str:
    memory, bytes_needed = budget.find_tightest(sizes.parts(result.context, sizes.drafters[0]))
    free = f"{format_bytes(memory.free)} of {memory.what} are free"
    changes = []
    if result.drafter != sizes.drafters[0]:
        needed = format_bytes(bytes_needed)
        what = "was left out" if result.drafter == NO_DRAFTER else f"has {result.drafter}"
        changes.append(f"the drafter {what}: with it the pair needs {needed}")
    if result.context < max_context:
        changes.append(f"the context has {result.context} of {max_context} tokens")
    return f"{', '.join(changes)}; {free}" if changes else ""


def _refusal(sizes: MemorySizes, budget: MemoryBudget, drafter: str, max_context: int, largest: int) -> str:
    context = max_context if largest else min(max_context, MIN_CONTEXT)
    memory, needed = budget.find_tightest(sizes.parts(context, drafter))
    without = " even without the drafter" if drafter != sizes.drafters[0] else ""
    remedy = f"--context {largest} fits" if largest else "use a smaller pair or a smaller quantization"
    return (
        f"a context of {context} tokens needs {format_bytes(needed)}{without} ({format_bytes(memory.margin)} of it as"
        f" margin), {format_bytes(memory.free)} of {memory.what} are free; {remedy}"
    )


def weights_of(matrix_weights: int, other_bytes: int) -> Mapping[str, int]:
    """Return the bytes of a target by quantization, best first; only matrices change their size."""
    return {name: int(matrix_weights * bits / 8) + other_bytes for name, bits in QUANTIZATIONS.items()}


def best_quantization(parts: Parts, budget: MemoryBudget, candidates: Mapping[str, int]) -> str | None:
    """Return the first of the candidates (bytes of weights by name) with which everything fits."""
    return next((name for name, size in candidates.items() if budget.holds(parts | {TARGET: size})), None)
