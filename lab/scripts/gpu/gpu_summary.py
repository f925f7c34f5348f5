"""Goals of the CUDA engine, and a summary of results with the goals that they meet."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CONTEXTS, TINY_CONTEXTS = ("1024", "16384"), ("64", "512")


@dataclass(frozen=True)
class Goal:
    """Measured value with its bound; the value is None if it was not measured."""

    name: str
    value: float | None
    bound: str

    @property
    def met(self) -> bool | None:
        """Return whether the value is within the bound; None if it was not measured."""
        if self.value is None:
            return None
        relation, number = self.bound.split()
        return self.value <= float(number) if relation == "<=" else self.value >= float(number)


def goals(phases: dict[str, Any]) -> list[Goal]:
    """Return the goals with the values that the phases measured; of two drafters the lower value counts."""
    steps = phases.get("steps", {})
    drafters = [steps[kind] for kind in ("Q4_K", "Q8_0") if kind in steps]
    short, long = CONTEXTS if any("step_ms_1024" in d for d in drafters) else TINY_CONTEXTS

    def minimum(*path: str) -> float | None:
        found = [value for d in drafters if (value := _find(d, *path)) is not None]
        return min(found, default=None)

    correct, embedded = phases.get("correctness", {}), phases.get("embedded", {})
    failed = float(len(correct["failed"])) if "failed" in correct else None
    return [
        Goal("GPU tests that fail", failed, "<= 0"),
        Goal(f"AR step over reading the weights, at {short}", _over_floor(phases, drafters, short), "<= 2"),
        Goal(f"draft + verify in AR steps at {short}", minimum(f"step_ms_{short}", "block_in_plain"), "<= 1.35"),
        Goal(f"draft + verify in AR steps at {long}", minimum(f"step_ms_{long}", "block_in_plain"), "<= 1.6"),
        Goal("AR against llama.cpp", _against_llama(phases, minimum, short), ">= 1.3"),
        Goal("peak memory against the prediction", _find(drafters[:1], 0, "memory", "peak_in_predicted"), "<= 1.05"),
        Goal("peak memory against the prediction", _find(drafters[:1], 0, "memory", "peak_in_predicted"), ">= 0.95"),
        Goal("embedded prompts that differ", _differing(embedded), "<= 0"),
    ]


def _over_floor(phases: dict[str, Any], drafters: list[dict[str, Any]], context: str) -> float | None:
    """Return the time of a step without a draft, divided by that of a plain reduction over as many bytes."""
    speed = _find(phases, "environment", "read_bandwidth_gb_s")
    ms, read = _find(drafters, 0, f"step_ms_{context}", "plain"), _find(drafters, 0, "weights", "verify")
    return round(ms / (read / speed / 1e6), 2) if speed and ms and read else None


def _against_llama(phases: dict[str, Any], minimum: Any, context: str) -> float | None:
    """Return the time of llama.cpp's fastest step without a draft, divided by that of our step."""
    theirs = [
        found["plain_ms"]
        for name, found in phases.get("llama", {}).items()
        if name.startswith(f"{context} ") and "plain_ms" in found
    ]
    ours = minimum(f"step_ms_{context}", "plain")
    return round(min(theirs) / ours, 3) if theirs and ours else None


def _differing(embedded: dict[str, Any]) -> float | None:
    same = _find(embedded, "overall", "identical")
    if not isinstance(same, str):
        return None
    equal, total = map(int, same.split("/"))
    return float(total - equal)


def _find(tree: Any, *path: str | int) -> Any:
    """Return a value in nested objects; None if a part of the path is missing."""
    for key in path:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def lines(phases: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a short summary."""
    for name, phase in phases.items():
        error = f": {phase['error'].splitlines()[0][:120]}" if phase.get("error") else ""
        yield f"{name:12} {phase.get('status', '?'):12} {phase.get('seconds', 0):7.1f} s{error}"
    yield ""
    for goal in goals(phases):
        verdict = {True: "met", False: "MISSED", None: "not measured"}[goal.met]
        value = "" if goal.value is None else f"{goal.value:g}"
        yield f"{goal.name:42} {value:>8}  {goal.bound:8} {verdict}"
    for name, gemm in phases.get("kernels", {}).get("gemms", {}).items():
        if "us" in gemm:
            yield f"{name:24} {gemm['us']:9.2f} us {gemm['gb_s']:8.4g} GB/s {gemm['gb_s_per_sm']:7.4g} per SM"
    for kind, found in phases.get("steps", {}).items():
        for name, answer in (found.get("acceptance", {}) if isinstance(found, dict) else {}).items():
            if isinstance(answer, dict):
                yield f"{kind} drafter, {name:8} {answer['tok_s']:9.1f} tok/s at {answer['tau']:.2f} tokens a step"
    overall = phases.get("embedded", {}).get("overall", {})
    for mode in ("plain", "drafting", "dflash alone"):
        if mode in overall:
            answer = overall[mode]
            yield f"embedded, {mode:13} {answer['tok_s']:9.1f} tok/s at {answer['tau']:.2f} tokens a step"
