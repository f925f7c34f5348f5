"""YaRN: what RoPE's frequencies are divided by, so that a context becomes longer than the one of training.

Source: arXiv 2309.00071.
"""

import math

BETA_FAST, BETA_SLOW = 32.0, 1.0  # turns within the original context: of what YaRN leaves as it is, and scales in full
LARGEST = 1e6  # far beyond every real factor and number of turns, far within what a float can divide by


def makes_sense(head_dim: int, theta: float, factor: float, context: int, fast: float, slow: float) -> bool:
    """Return whether `yarn_factors` has finite divisors, all positive, for what a file says."""
    turns = all(1 / LARGEST <= often <= LARGEST for often in (fast, slow))
    return head_dim >= 2 and theta > 1 and context >= 1 and 1 <= factor <= LARGEST and turns


def yarn_factors(
    head_dim: int,
    theta: float,
    factor: float,
    context: int,
    fast: float = BETA_FAST,
    slow: float = BETA_SLOW,
    whole: bool = False,
) -> tuple[float, ...]:
    """The head_dim / 2 divisors: 1 for frequencies that turn fast in the original `context`, `factor` for slow ones, a
    mean between. `whole`: where one ends and the other begins is rounded outwards to whole frequencies.
    """
    half = head_dim // 2

    def frequency(turns: float) -> float:
        """Return the one that turns so often within the original context."""
        return half * math.log(context / (turns * 2 * math.pi)) / math.log(theta)

    first, last = frequency(fast), frequency(slow)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0.0), min(last, head_dim - 1.0)
    ramp = [min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0) for i in range(half)]
    return tuple(1 / (scaled / factor + 1 - scaled) for scaled in ramp)


def yarn_magnitude(factor: float) -> float:
    """By how much turned queries and keys become longer."""
    return 1 + 0.1 * math.log(factor) if factor > 1 else 1.0
