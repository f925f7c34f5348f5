"""YaRN: divisors of RoPE's frequencies that extend the context beyond that of training (arXiv 2309.00071)."""

import math

from localdflash.base.errors import ModelError

BETA_FAST, BETA_SLOW = 32.0, 1.0  # turns in the original context: at least 32: not scaled; at most 1: fully scaled
MAX_FACTOR = 1e6  # maximum of YaRN's factor and of the number of turns; far above real values


def yarn_factors(
    subject: str,
    head_dim: int,
    theta: float,
    factor: float,
    context: int,
    fast: float = BETA_FAST,
    slow: float = BETA_SLOW,
    *,
    round_outwards: bool = False,
) -> tuple[float, ...]:
    """Return the head_dim / 2 divisors: 1 for fast frequencies, `factor` for slow ones, interpolated between.

    `round_outwards`: start and end the interpolation at whole indices. ModelError for invalid parameters.
    """
    are_betas = all(1 / MAX_FACTOR <= turns <= MAX_FACTOR for turns in (fast, slow))
    if not (head_dim >= 2 and theta > 1 and context >= 1 and 1 <= factor <= MAX_FACTOR and are_betas):
        raise ModelError(
            f"{subject}: invalid YaRN scaling (factor {factor}, original context {context}, beta_fast {fast}, beta_slow"
            f" {slow}); convert the model again"
        )
    half = head_dim // 2

    def frequency(turns: float) -> float:
        """Return the index of the frequency that turns so often within the original context."""
        return half * math.log(context / (turns * 2 * math.pi)) / math.log(theta)

    first, last = frequency(fast), frequency(slow)
    if round_outwards:
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0.0), min(last, head_dim - 1.0)
    ramp = [min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0) for i in range(half)]
    return tuple(1 / (scaled / factor + 1 - scaled) for scaled in ramp)


def yarn_magnitude(factor: float) -> float:
    """Return the factor by which YaRN scales rotated queries and keys."""
    return 1 + 0.1 * math.log(factor) if factor > 1 else 1.0
