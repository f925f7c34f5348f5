"""Measure what a verify and a draft cost on this machine, for the controller. Leaves the caches empty."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from localdflash.engine.controller import Controller
from localdflash.engine.draft import Draft
from localdflash.engine.pair import Drafter, Target

WIDTHS = (1, 2, 4, 8, 16, 32)
CONTEXT = 64  # tokens in the cache while measuring
REPEATS = 5


def calibrate(target: Target, drafters: Sequence[Drafter]) -> Controller:
    """A controller with the costs measured now. A drafter that reads no taps is taken as free."""
    rows = min(CONTEXT, target.context // 2, target.max_rows)
    ids = [1] * rows
    taps = target.extend(ids)
    widths = [w for w in WIDTHS if w <= min(target.max_rows, target.context - rows)]
    verify_ms = {width: _time(_verify(target, width)) for width in widths}
    for narrower, width in pairwise(widths):
        verify_ms[width] = max(verify_ms[width], verify_ms[narrower])  # more rows never cost less: that is noise
    draft_ms = {}
    for drafter in drafters:
        draft_ms[drafter.name] = 0.0
        if drafter.reads_taps:
            drafter.observe(ids, taps)
            draft_ms[drafter.name] = _time(lambda drafter=drafter: drafter.propose(1, target.max_rows))  # type: ignore[misc]
            drafter.rollback(0)
    target.crop(0)
    return Controller(verify_ms, draft_ms)


def _verify(target: Target, width: int) -> Callable[[], None]:
    draft = Draft.chain("none", [1] * (width - 1), [1.0] * (width - 1))

    def run() -> None:
        target.verify(1, draft)
        target.keep(())

    return run


def _time(run: Callable[[], object]) -> float:
    run()  # the first call allocates
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1e3)
    return median(times)
