"""Cost of a verify step by batch width, relative to a single-token step."""

import time
from typing import Any

from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import Target

WIDTHS = (1, 2, 4, 8, 12, 16, 32)
CONTEXT = 256  # tokens in the cache
MIN_ROUNDS, SECONDS = 5, 4.0  # the measurement ends when both are reached
MIN_CALLS, MIN_CALL_SECONDS = 3, 5e-3  # a call is repeated until both are reached, since it starts with cold CPU caches


def verify_table(target: Target, baseline: Target, seconds: float = SECONDS) -> dict[str, Any]:
    """Return the milliseconds of a verify step by batch width, and their ratio to a single-token step (`ar`).

    `baseline` is the same model without hidden-state features for a drafter. Widths are interleaved, and the fastest
    round of each counts. Both KV caches are emptied.
    """
    widths = [width for width in WIDTHS if width <= target.max_width]
    context = min(CONTEXT, target.context - widths[-1] - 1)
    drafts = {width: Draft("none", [1] * (width - 1), [1.0] * (width - 1)) for width in widths}
    for each in (target, baseline):
        _fill(each, context)
    ar, verify = float("inf"), dict.fromkeys(widths, float("inf"))
    start, rounds = time.perf_counter(), 0
    while rounds < MIN_ROUNDS or time.perf_counter() - start < min(seconds, SECONDS):
        rounds += 1
        ar = min(ar, _step_ms(baseline, EMPTY_DRAFT))
        for width, draft in drafts.items():
            verify[width] = min(verify[width], _step_ms(target, draft))
    for each in (target, baseline):
        each.crop(0)
    return {
        "context": context,
        "ar_ms": round(ar, 4),
        "ms": {width: round(ms, 4) for width, ms in verify.items()},
        "over_ar": {width: round(ms / ar, 3) for width, ms in verify.items()},
    }


def _fill(target: Target, tokens: int) -> None:
    target.crop(0)
    while target.length < tokens:
        target.extend([1] * min(target.max_width, tokens - target.length))


def _step_ms(target: Target, draft: Draft) -> float:
    """Return the milliseconds of the fastest of several forward passes, which commit no tokens."""
    times: list[float] = []
    while len(times) < MIN_CALLS or sum(times) < MIN_CALL_SECONDS:
        start = time.perf_counter()
        target.verify(1, draft)
        target.keep(0)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3
