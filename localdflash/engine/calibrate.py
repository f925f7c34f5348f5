"""Measure what a verify and a draft cost on this machine, for the controller. Leaves the caches empty."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from localdflash.engine.controller import Controller
from localdflash.engine.draft import Draft
from localdflash.engine.pair import Drafter, Target, TargetFeatures

WIDTHS = (1, 2, 4, 8, 16, 32)
CONTEXT = 16  # tokens in the cache while measuring
LONG, FEW = 2048, 4  # tokens that a cache is said to have, and rows or nodes, to see what more of them cost
LEAST = 1e-3  # milliseconds: no node that is a forward is free
ROUNDS = 3
TURN, ONCE = 3e-3, 8e-3  # seconds: how long a call is repeated for, and what is long enough not to be

Key = TypeVar("Key")


def calibrate(
    target: Target, drafters: Sequence[Drafter], widths: Sequence[int] = WIDTHS, rounds: int = ROUNDS
) -> Controller:
    """A controller with the costs measured now. A drafter that is no model counts as free."""
    rows = min(CONTEXT, target.context // 2, target.max_width)
    ids = [1] * rows
    taps = target.extend(ids)
    models = [drafter for drafter in drafters if drafter.is_model]
    for drafter in models:
        drafter.observe(ids, taps)
    widths = [w for w in widths if w <= min(target.max_width, target.context - rows)]
    verify_ms = _fastest({width: _verify(target, width) for width in widths}, rounds)
    _rising(verify_ms)
    free = dict.fromkeys((drafter.name for drafter in drafters), 0.0)
    draft_ms, node_ms = _drafts(models, target.max_width, rounds)
    reads = {drafter.name: _read(drafter, ids, taps) for drafter in models if drafter.is_autoregressive}
    read_ms = {name: max(ms - draft_ms[name], 0.0) / rows for name, ms in _fastest(reads, rounds).items()}
    for drafter in models:
        drafter.rollback(0)
    growth = _growth(target, verify_ms, rows)
    target.crop(0)
    return Controller(verify_ms, free | draft_ms, growth, node_ms, read_ms)


def _drafts(drafters: Sequence[Drafter], limit: int, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """What a draft costs, by drafter, or its first node; and what every further one does where each is a forward."""
    one = {drafter.name: _propose(drafter, 1 if drafter.is_autoregressive else limit) for drafter in drafters}
    few = {drafter.name: _propose(drafter, FEW) for drafter in drafters if drafter.is_autoregressive}
    first, longer = _fastest(one, rounds), _fastest(few, rounds)
    return first, {name: max(ms - first[name], LEAST) / (FEW - 1) for name, ms in longer.items()}


def _growth(target: Target, verify_ms: Mapping[int, float], rows: int) -> dict[int, float] | None:
    """What a width costs more for a token of context, from few widths: what is added grows by the row.

    None where the target cannot tell, or has little room.
    """
    long, narrow = min(LONG, target.context - FEW), [width for width in verify_ms if width in (1, FEW)]
    if len(narrow) < 2 or long < 4 * rows or not target.assume_length(long):
        return None
    found = _fastest({width: _verify(target, width) for width in narrow}, 2)
    one, few = (max(0.0, found[width] - verify_ms[width]) / (long - rows) for width in narrow)
    by_row = max(0.0, few - one) / (FEW - 1)
    return {width: one + by_row * (width - 1) for width in verify_ms}


def _rising(times: dict[int, float]) -> None:
    """More rows never cost less: that is noise."""
    for narrower, width in pairwise(times):
        times[width] = max(times[width], times[narrower])


def _verify(target: Target, width: int) -> Callable[[], None]:
    draft = Draft("none", [1] * (width - 1), [1.0] * (width - 1))

    def run() -> None:
        target.verify(1, draft)
        target.keep(0)

    return run


def _propose(drafter: Drafter, limit: int) -> Callable[[], object]:
    return lambda: drafter.propose(1, limit)


def _read(drafter: Drafter, ids: Sequence[int], taps: TargetFeatures | None) -> Callable[[], None]:
    def run() -> None:
        drafter.rollback(0)
        drafter.observe(ids, taps)
        drafter.propose(1, 1)

    return run


def _fastest(runs: Mapping[Key, Callable[[], object]], rounds: int) -> dict[Key, float]:
    """Milliseconds of each call, the fastest of its repeats: a disturbance only ever makes it longer.

    The calls take turns, so that a busy moment of the machine does not hit one of them alone. A turn repeats its call,
    because what ran before leaves caches and branch predictors in another state. A long call does not feel that, and a
    first answer waits for all of this.
    """
    times = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for key, run in runs.items():
            times[key] = min(times[key], _turn(run))
    return times


def _turn(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    best = _time(run)
    if best > ONCE * 1e3:
        return best
    best = min(best, _time(run))
    while time.perf_counter() - began < TURN:
        best = min(best, _time(run))
    return best


def _time(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1e3
