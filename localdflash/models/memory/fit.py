"""Fit a pair into memory: the drafter is reduced or left out before the context is cut, and a notice says so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from localdflash.base.errors import OutOfMemory
from localdflash.models.memory.parts import TARGET, Parts, divided, gigabytes, total

NO_DRAFTER = "none"
AS_IT_IS = "as it is"
STEP = 256  # tokens; contexts of llama.cpp and the CUDA engine are multiples
LEAST = 512  # tokens of the shortest context
FAR = 4  # times the free memory
ROOMY = 8192  # tokens of context for which an idle pair is unloaded
COMFORTABLE = 4096  # tokens of context for which the drafter is reduced if no context was requested

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
        """Return the bytes with this context."""


@dataclass(frozen=True)
class MemoryBudget:
    """Free bytes of `what`; `margin` stays free, `spare` too if no context was requested. `beside`: host memory."""

    free: int
    margin: int
    what: str
    beside: "MemoryBudget | None" = None
    spare: int = 0

    def holds(self, parts: Parts) -> bool:
        """Return whether all parts and the margin fit."""
        memory, needed = self.tight(parts)
        return needed <= memory.free

    def tight(self, parts: Parts) -> "tuple[MemoryBudget, int]":
        """Return the memory that is too small for these parts, else this one, and the bytes needed there."""
        needed = self.needed(parts)
        if not self.beside:
            return self, needed
        others = divided(parts)[1]
        fits_here, fits_beside = needed <= self.free, self.beside.holds(others)
        return self.beside.tight(others) if fits_here and not fits_beside else (self, needed)

    def needed(self, parts: Parts) -> int:
        """Return the bytes of this memory's share of the parts, and the margin."""
        return total(divided(parts)[0] if self.beside else parts) + self.margin


@dataclass(frozen=True)
class Fit:
    """Drafter and context to load. `notice` is a line for the user if that is less than requested, or empty."""

    drafter: str
    context: int
    parts: Parts
    notice: str = ""


def largest_context(sizes: MemorySizes, drafter: str, budget: MemoryBudget, most: int) -> int:
    """Return the largest context that fits: `most`, else a multiple of `STEP`, else 0.

    The search starts above, since less context is not always less memory, and halves a context that is `FAR` too large.
    """
    parts = sizes.parts(most, drafter)
    if budget.holds(parts):
        return most
    fits = -(-most // STEP)
    while True:
        memory, needed = budget.tight(parts)
        too_many, fits = fits, fits // 2 if needed > FAR * memory.free else fits * 7 // 8
        if not fits or budget.holds(parts := sizes.parts(fits * STEP, drafter)):
            break
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if budget.holds(sizes.parts(middle * STEP, drafter)):
            fits = middle
        else:
            too_many = middle
    return fits * STEP


def fit(sizes: MemorySizes, budget: MemoryBudget, wanted: int, *, roomy: bool = False) -> Fit:
    """Return the pair to load with the wanted context (0: up to the trained one); OutOfMemory if it does not fit."""
    most = wanted or sizes.trained
    enough = wanted or min(most, COMFORTABLE)
    largest, drafter = 0, NO_DRAFTER
    for drafter in sizes.drafters:
        largest = largest_context(sizes, drafter, budget, most)
        if largest >= enough:
            break
    else:
        if wanted or largest < min(most, LEAST):
            raise OutOfMemory(_refusal(sizes, budget, drafter, most, largest))
    if roomy and (drafter != sizes.drafters[0] or largest < min(most, ROOMY)):
        raise OutOfMemory(_refusal(sizes, budget, drafter, min(most, ROOMY), largest))
    if not wanted and budget.spare and largest > COMFORTABLE:
        spared = replace(budget, margin=budget.margin + budget.spare)
        largest = max(largest_context(sizes, drafter, spared, largest), COMFORTABLE)
    chosen = Fit(drafter, largest, sizes.parts(largest, drafter))
    return replace(chosen, notice=_notice(sizes, budget, chosen, most))


def _notice(sizes: MemorySizes, budget: MemoryBudget, chosen: Fit, most: int) -> str:
    memory, bytes_needed = budget.tight(sizes.parts(chosen.context, sizes.drafters[0]))
    free = f"{gigabytes(memory.free)} of {memory.what} are free"
    said = []
    if chosen.drafter != sizes.drafters[0]:
        needed = gigabytes(bytes_needed)
        what = "was left out" if chosen.drafter == NO_DRAFTER else f"has {chosen.drafter}"
        said.append(f"the drafter {what}: the pair as asked for needs {needed}")
    if chosen.context < most:
        said.append(f"the context has {chosen.context} of {most} tokens")
    return f"{', '.join(said)}; {free}" if said else ""


def _refusal(sizes: MemorySizes, budget: MemoryBudget, drafter: str, most: int, largest: int) -> str:
    context = most if largest else min(most, LEAST)
    memory, needed = budget.tight(sizes.parts(context, drafter))
    without = " even without the drafter" if drafter != sizes.drafters[0] else ""
    remedy = f"--context {largest} fits" if largest else "take a smaller pair or a smaller quantization of it"
    return (
        f"a context of {context} tokens needs {gigabytes(needed)}{without} ({gigabytes(memory.margin)} of it as"
        f" margin), {gigabytes(memory.free)} of {memory.what} are free: {remedy}"
    )


def weights_of(matrix_weights: int, other_bytes: int) -> Mapping[str, int]:
    """Return the bytes of a target in every quantization, best first; other tensors keep their size."""
    return {name: int(matrix_weights * bits / 8) + other_bytes for name, bits in QUANTIZATIONS.items()}


def best_quantization(parts: Parts, budget: MemoryBudget, candidates: Mapping[str, int]) -> str | None:
    """Return the first of the candidates (bytes of weights by name) with which everything fits."""
    return next((name for name, size in candidates.items() if budget.holds(parts | {TARGET: size})), None)
