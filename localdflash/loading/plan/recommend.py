"""Recommend a pair for each role on this machine: the largest that is fast enough, else the fastest that fits."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from localdflash.base.extras import install_command, missing_module
from localdflash.loading.backends import EXTRAS
from localdflash.loading.plan.here import PairAssessment, assess_pair, needed_bytes, why_not
from localdflash.models.backend_names import Runner
from localdflash.models.memory.free import all_memory
from localdflash.models.memory.parts import format_bytes
from localdflash.models.registry.pair_entry import PairEntry

Role = Literal["chat", "completion"]
MEMORY_SHARE = 0.8  # of the machine's memory, for a pair on the CPU; the rest is for other programs
# Tokens per second without drafting: the speed of reading, and a suggestion of a line within 0.2 s.
MIN_RATE: dict[Role, float] = {"chat": 5.0, "completion": 60.0}


@dataclass(frozen=True)
class Recommendation:
    """Pair for a role, its expected tokens per second without drafting, and the reason against the next larger pair."""

    role: Role
    pair: PairEntry
    tokens_per_second: float
    larger: PairEntry | None  # None: `pair` is the largest
    against_larger: str
    install: str = ""  # command that installs the pair's backend; "": it is installed


def recommend(role: Role, pairs: Iterable[PairEntry]) -> Recommendation | None:
    """Return the recommendation among pairs that a test ran; None if none of them fits with a known speed."""
    tested = [pair for pair in pairs if pair.ran and _serves(pair, role)]
    by_size = sorted(tested, key=needed_bytes)
    assessments = {pair.id: assess_pair(pair) for pair in by_size}
    rates = {pair.id: rate for pair in by_size if (rate := _rate(pair, assessments[pair.id]))}
    suitable = [pair for pair in by_size if rates.get(pair.id, 0.0) >= MIN_RATE[role]]
    fastest = max((pair for pair in by_size if pair.id in rates), key=lambda pair: rates[pair.id], default=None)
    if not (best := suitable[-1] if suitable else fastest):
        return None
    larger = next((pair for pair in by_size if needed_bytes(pair) > needed_bytes(best)), None)
    against, backend = _against(larger, rates) if larger else "", assessments[best.id].backend
    return Recommendation(role, best, rates[best.id], larger, against, _install_command(backend))


def _install_command(backend: Runner | None) -> str:
    """Return the command that installs a backend; "" if it is installed, or needs no extra."""
    extra = "cuda" if backend == "cuda" else EXTRAS.get(backend) if backend else None
    return install_command(extra) if extra and missing_module(extra) else ""


def _serves(pair: PairEntry, role: Role) -> bool:
    """Return whether a pair is for a role."""
    return pair.fim is not None if role == "completion" else pair.chat


def _rate(pair: PairEntry, assessment: PairAssessment) -> float:
    """Return the expected tokens per second, 0 if the pair takes too much memory or its speed is unknown."""
    leaves_room = assessment.backend == "cuda" or needed_bytes(pair) <= MEMORY_SHARE * all_memory()
    return (assessment.tokens_per_second or 0.0) if leaves_room else 0.0


def _against(pair: PairEntry, rates: dict[str, float]) -> str:
    if pair.id in rates:
        return f"only {rates[pair.id]:.1f} tok/s"
    needed, memory = format_bytes(needed_bytes(pair)), format_bytes(all_memory())
    return why_not(pair) or f"needs {needed} of {memory}; a pair should take at most {MEMORY_SHARE:.0%}"
