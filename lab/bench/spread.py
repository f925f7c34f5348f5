"""Summaries of measured times: median, 95th percentile, maximum."""

from collections.abc import Sequence
from statistics import median, quantiles


def spread(times: Sequence[float]) -> dict[str, float]:
    """Return the summary in the unit of the times; empty without times."""
    if not times:
        return {}
    return {"p50": round(median(times), 3), "p95": round(percentile(times, 95), 3), "max": round(max(times), 3)}


def percentile(times: Sequence[float], percent: int) -> float:
    """Return a percentile by linear interpolation."""
    if len(times) == 1:
        return times[0]
    return quantiles(times, n=100, method="inclusive")[percent - 1]
