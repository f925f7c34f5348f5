"""Measures the costs of verify batches and drafts on this machine, for the controller. Leaves the caches empty."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

from localdflash.engine.controller import Controller
from localdflash.engine.draft import Draft
from localdflash.engine.pair import Drafter, Target

WIDTHS = (1, 2, 4, 8, 16, 32)
CONTEXT_TOKENS = 16  # tokens in the cache while measuring
LONG_CONTEXT_TOKENS = 2048  # the cache pretends to hold these, to measure how costs grow with it
GROWTH_WIDTH = 4  # batch width that is timed over a long context, next to width 1, to extrapolate to other widths
ID_STRIDE = 7919  # a prime, so that `spread_ids` repeats no id before it has used the whole vocabulary
ROUND_SECONDS = 0.05  # another round of timings begins if less has passed; a slow model is timed in one round
REPEAT_SECONDS = 3e-3  # a call is repeated until this much time has passed
SINGLE_CALL_SECONDS = 8e-3  # a longer call is timed once

Key = TypeVar("Key")


def calibrate(
    target: Target, drafters: Sequence[Drafter], widths: Sequence[int] = WIDTHS, seconds: float = ROUND_SECONDS
) -> Controller:
    """Return a controller with measured costs; a drafter that is not a model costs 0.

    Rounds of timings begin for `seconds`, at least one; those of the six widths, which are longer, for twice as much.
    """
    length = min(CONTEXT_TOKENS, target.context // 2, target.max_width)
    ids = spread_ids(target.vocab_size, length)
    features = target.extend(ids)
    models = [drafter for drafter in drafters if drafter.is_model]
    for drafter in models:
        drafter.observe(ids, features)
    widest = min(target.max_width, target.context - length)
    widths = sorted((width for width in widths if width <= widest), reverse=True)  # the first call is slow: a wide one
    verify_ms = _time_fastest({width: _make_verify(target, width) for width in widths}, 2 * seconds)
    for wider, width in pairwise(widths):  # if a wider batch is faster, this one was disturbed
        verify_ms[width] = min(verify_ms[width], verify_ms[wider])
    zero_ms = dict.fromkeys((drafter.name for drafter in drafters), 0.0)
    draft_ms = _time_fastest({each.name: partial(each.propose, 1, target.max_width) for each in models}, seconds)
    for drafter in models:
        drafter.rollback(0)
    growth = _measure_growth(target, verify_ms, length, seconds)
    target.crop(0)
    return Controller(verify_ms, zero_ms | draft_ms, growth)


def _measure_growth(
    target: Target, verify_ms: Mapping[int, float], length: int, seconds: float
) -> dict[int, float] | None:
    """Return the extra milliseconds of each width per token of context; None if a long context cannot be assumed."""
    long_length = min(LONG_CONTEXT_TOKENS, target.context - GROWTH_WIDTH)
    widths = [width for width in (1, GROWTH_WIDTH) if width in verify_ms]
    if len(widths) < 2 or long_length < 4 * length or not target.assume_length(long_length):
        return None
    long_ms = _time_fastest({width: _make_verify(target, width) for width in widths}, seconds)
    single, wide = (max(0.0, long_ms[width] - verify_ms[width]) / (long_length - length) for width in widths)
    return {width: single + max(0.0, wide - single) / (GROWTH_WIDTH - 1) * (width - 1) for width in verify_ms}


def spread_ids(vocab_size: int, count: int) -> list[int]:
    """Return different token ids: like the tokens of a text, they are routed to different experts."""
    return [(1 + ID_STRIDE * i) % vocab_size for i in range(count)]


def _make_verify(target: Target, width: int) -> Callable[[], None]:
    anchor, *tokens = spread_ids(target.vocab_size, width)
    draft = Draft("none", tokens, [1.0] * len(tokens))

    def run() -> None:
        target.verify(anchor, draft)
        target.keep(0)

    return run


def _time_fastest(runs: Mapping[Key, Callable[[], object]], seconds: float) -> dict[Key, float]:
    """Return the fastest time of each call in milliseconds; calls are interleaved, and disturbances only slow them."""
    deadline = time.perf_counter() + seconds
    times = {key: _time_repeatedly(run) for key, run in runs.items()}
    while runs and time.perf_counter() < deadline:
        for key, run in runs.items():
            times[key] = min(times[key], _time_repeatedly(run))
    return times


def _time_repeatedly(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    best = _time(run)
    if best > SINGLE_CALL_SECONDS * 1e3:
        return best
    best = min(best, _time(run))
    while time.perf_counter() - began < REPEAT_SECONDS:
        best = min(best, _time(run))
    return best


def _time(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1e3
