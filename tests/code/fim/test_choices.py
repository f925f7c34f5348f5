"""Different answers of one place."""

import numpy as np

from localdflash.code.fim.choices import DistinctStart


def test_every_answer_begins_otherwise_and_none_with_an_end() -> None:
    taken = {3}
    first, second = DistinctStart(None, 5, taken), DistinctStart(None, 5, taken)
    assert _allowed(first) == [0, 1, 2, 4]
    assert first.count_allowed([3, 1]) == 0
    first.advance(1)
    assert first.mask() is None
    assert first.count_allowed([1, 3]) == 2
    assert _allowed(second) == [0, 2, 4]
    assert second.count_allowed([1]) == 0


def _allowed(one: DistinctStart) -> list[int]:
    mask = one.mask()
    assert mask is not None
    return np.flatnonzero(mask).tolist()
