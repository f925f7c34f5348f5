"""The choice of a way to step: the better one wins, the other one is tried within a share of the time."""

import pytest

from localdflash.backends.cuda.cuda_pair import Ways
from localdflash.backends.cuda.stepper import Way


def simulate(tokens: dict[Way, int], ms: dict[Way, float], steps: int = 2000) -> tuple[dict[Way, int], float]:
    """How often each way was taken when it commits so many tokens, and tokens a millisecond over all of it."""
    ways, taken, spent, got = Ways(dict(ms)), dict.fromkeys(ms, 0), 0.0, 0
    for _ in range(steps):
        way = ways.choose()
        ways.learn(way, tokens[way], ms[way])
        taken[way] += 1
        spent += ms[way]
        got += tokens[way]
    return taken, got / spent


@pytest.mark.parametrize(
    ("tokens", "best"),
    [
        ({"lookup": 1, "block": 4}, "block"),
        ({"lookup": 1, "block": 1}, "lookup"),
        ({"lookup": 9, "block": 9}, "lookup"),
    ],
)
def test_the_better_way_wins(tokens: dict[Way, int], best: Way) -> None:
    taken, rate = simulate(tokens, {"lookup": 1.0, "block": 1.3})
    assert taken[best] > 0.9 * sum(taken.values())
    assert rate > 0.97 * max(tokens["lookup"], tokens["block"] / 1.3)
