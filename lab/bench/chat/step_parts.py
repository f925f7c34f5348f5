"""Time of a drafted step by part: draft, verify, accept, what drafters observe, and Python around it."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from localdflash.engine.host_pair import HostPair
from localdflash.engine.stats import Stats

DRAFT, VERIFY, KEEP, OBSERVE = "propose", "verify", "keep", "observe"


@contextmanager
def timed(thing: object, method: str, spent: defaultdict[str, float]) -> Iterator[None]:
    """Add the milliseconds of each call of a method of one object to `spent`."""
    original: Callable[..., Any] = getattr(thing, method)

    def measured(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*arguments)
        finally:
            spent[method] += (time.perf_counter() - began) * 1e3

    setattr(thing, method, measured)
    try:
        yield
    finally:
        delattr(thing, method)


def parts(pair: HostPair, answer: Callable[[], Stats]) -> dict[str, float]:
    """Return the mean milliseconds of a step by part, over the steps of `answer`, which runs the pair."""
    spent = defaultdict[str, float](float)
    with ExitStack() as stack:
        for method in (VERIFY, KEEP):
            stack.enter_context(timed(pair.target, method, spent))
        for drafter in pair.drafters:
            for method in (DRAFT, OBSERVE):
                stack.enter_context(timed(drafter, method, spent))
        stats = answer()
    accept = stats.verify_ms - spent[VERIFY] - spent[KEEP]
    known = {"draft": spent[DRAFT], "verify": spent[VERIFY], "accept": accept, "observe": spent[OBSERVE]}
    known["python"] = stats.total_ms - sum(known.values())
    return {name: round(ms / stats.steps, 4) for name, ms in known.items()}
