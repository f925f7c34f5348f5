"""Time of a decoding step by part: draft, verify, accept, the drafters' `observe`, and the remaining Python code."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import GreedyTarget
from localdflash.engine.stats import Stats

DRAFT, KEEP, OBSERVE = "propose", "keep", "observe"


@contextmanager
def measure_method(owner: object, method: str, spent_ms: defaultdict[str, float]) -> Iterator[None]:
    """Patch one object's method: add the milliseconds of each call to `spent_ms[method]` until the context exits."""
    original: Callable[..., Any] = getattr(owner, method)

    def measured(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*arguments)
        finally:
            spent_ms[method] += (time.perf_counter() - began) * 1e3

    setattr(owner, method, measured)
    try:
        yield
    finally:
        delattr(owner, method)


def measure_parts(pair: HostPair, answer: Callable[[], Stats]) -> dict[str, float]:
    """Return the mean milliseconds of each part of a step. `answer` generates greedily and returns the pair's stats."""
    spent = defaultdict[str, float](float)
    verify = "verify_greedy" if isinstance(pair.target, GreedyTarget) else "verify"
    with ExitStack() as stack:
        for method in (verify, KEEP):
            stack.enter_context(measure_method(pair.target, method, spent))
        for drafter in pair.drafters:
            for method in (DRAFT, OBSERVE):
                stack.enter_context(measure_method(drafter, method, spent))
        stats = answer()
    accept = stats.verify_ms - spent[verify] - spent[KEEP]
    parts = {"draft": spent[DRAFT], "verify": spent[verify], "accept": accept, "observe": spent[OBSERVE]}
    parts["python"] = stats.total_ms - sum(parts.values())
    return {name: round(ms / stats.steps, 4) for name, ms in parts.items()}
