"""YaRN's divisors for whatever a damaged file may say; Hugging Face's numbers are in test_dflash_config."""

import math

from hypothesis import given
from hypothesis import strategies as st

from localdflash.models.shapes.yarn import LARGEST, makes_sense, yarn_factors

ANY = st.floats(width=32) | st.sampled_from((0.0, 1.0, -1.0, LARGEST, 1 / LARGEST, 3.4e38, 1e-45))
LIKELY = st.floats(1 / LARGEST, LARGEST)


@given(
    st.sampled_from((2, 64, 128)),
    st.floats(1, exclude_min=True, allow_infinity=False),
    st.floats(1, LARGEST),
    st.integers(1, 1 << 31),
    LIKELY,
    LIKELY,
    st.booleans(),
)
def test_what_makes_sense_has_divisors(
    head_dim: int, theta: float, factor: float, context: int, fast: float, slow: float, whole: bool
) -> None:
    assert makes_sense(head_dim, theta, factor, context, fast, slow)
    found = yarn_factors(head_dim, theta, factor, context, fast, slow, whole)
    assert len(found) == head_dim // 2
    assert all(0.999 <= divisor <= factor * 1.001 for divisor in found)


def _said(odd: dict[str, float]) -> tuple[int, float, float, int, float, float]:
    """The arguments of a usual file, but for what is odd."""
    found = {"theta": 1e6, "factor": 8.0, "fast": 32.0, "slow": 1.0} | odd
    return 64, found["theta"], found["factor"], 4096, found["fast"], found["slow"]


@given(st.sampled_from(("theta", "factor", "fast", "slow")), ANY)
def test_one_odd_number_is_told_or_harmless(name: str, value: float) -> None:
    if makes_sense(*_said({name: value})):
        assert all(map(math.isfinite, yarn_factors(*_said({name: value}))))
