"""Cost of a verify step by batch width, relative to a single-token step."""

import time
from typing import Any

from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import Target

WIDTHS = (1, 2, 4, 8, 12, 16, 32)
CONTEXT = 256  # tokens in the cache
ROUNDS, SECONDS = 5, 4.0  # at least so many, and for so long
CALLS, TURN = 3, 5e-3  # at least so many at each turn, and for so many seconds: what came before is in the caches


def verify_table(target: Target, plain: Target, seconds: float = SECONDS) -> dict[str, Any]:
    """Return the milliseconds of a verify step by batch width, and their ratio to a single-token step.

    `plain` is the same model without features. Rounds are interleaved, the fastest counts. Both caches are emptied.
    """
    widths = [rows for rows in WIDTHS if rows <= target.max_width]
    context = min(CONTEXT, target.context - widths[-1] - 1)
    drafts = {rows: Draft("none", [1] * (rows - 1), [1.0] * (rows - 1)) for rows in widths}
    for each in (target, plain):
        _fill(each, context)
    ar, verify = float("inf"), dict.fromkeys(widths, float("inf"))
    began, rounds = time.perf_counter(), 0
    while rounds < ROUNDS or time.perf_counter() - began < min(seconds, SECONDS):
        rounds += 1
        ar = min(ar, _step_ms(plain, EMPTY_DRAFT))
        for rows, draft in drafts.items():
            verify[rows] = min(verify[rows], _step_ms(target, draft))
    for each in (target, plain):
        each.crop(0)
    return {
        "context": context,
        "ar_ms": round(ar, 4),
        "ms": {rows: round(ms, 4) for rows, ms in verify.items()},
        "over_ar": {rows: round(ms / ar, 3) for rows, ms in verify.items()},
    }


def _fill(target: Target, tokens: int) -> None:
    target.crop(0)
    while target.length < tokens:
        target.extend([1] * min(target.max_width, tokens - target.length))


def _step_ms(target: Target, draft: Draft) -> float:
    """Return the time of one forward that keeps nothing; the fastest of several."""
    times: list[float] = []
    while len(times) < CALLS or sum(times) < TURN:
        began = time.perf_counter()
        target.verify(1, draft)
        target.keep(0)
        times.append(time.perf_counter() - began)
    return min(times) * 1e3
