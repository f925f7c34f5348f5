"""V(M): fastest of rounds, in units of the plain target's step, with an empty cache before and after."""

from collections.abc import Sequence

import numpy as np
import pytest

from localdflash.engine.draft import Draft
from localdflash.engine.pair import Verification
from localdflash.lab.bench import verify_table as module
from localdflash.lab.bench.verify_table import verify_table


class Clock:
    """Moves when a target works."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Target:
    """Takes a time for each row, more of it at first, on a clock of its own."""

    vocab_size = 2
    is_recurrent = False

    def __init__(self, clock: Clock, ms: float, context: int = 1024) -> None:
        self.clock, self.ms, self.context = clock, ms, context
        self.length, self.max_width, self.calls = 7, 16, 0
        self.measured_at: set[int] = set()

    def extend(self, ids: Sequence[int]) -> None:
        assert len(ids) <= self.max_width
        self.length += len(ids)

    def verify(self, anchor: int, draft: Draft) -> Verification:
        rows = len(draft) + 1
        self.calls += 1
        self.measured_at.add(self.length)
        slow = 5.0 if self.calls % 3 else 0.0
        self.clock.now += (self.ms * (1 + rows / 4) + slow) / 1e3
        return Verification(np.zeros((rows, 2), np.float32), None)

    def keep(self, rows: int) -> None:
        self.length += rows

    def end_prompt(self) -> None:
        pass

    def crop(self, length: int) -> None:
        self.length = length

    def assume_length(self, length: int) -> bool:
        return False

    def save(self) -> bytes:
        raise NotImplementedError

    def load(self, state: bytes, length: int) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(("context", "expected"), [(1024, 256), (128, 111)])
def test_times_are_in_units_of_a_plain_step(context: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    target, plain = Target(clock, 2.0, context), Target(clock, 1.6, context)
    table = verify_table(target, plain)
    assert clock.now >= module.SECONDS
    assert table["context"] == expected
    assert target.measured_at == plain.measured_at == {expected}
    assert table["ar_ms"] == pytest.approx(2.0)
    assert table["ms"] == pytest.approx({1: 2.5, 2: 3.0, 4: 4.0, 8: 6.0, 12: 8.0, 16: 10.0})
    assert table["over_ar"] == pytest.approx({1: 1.25, 2: 1.5, 4: 2.0, 8: 3.0, 12: 4.0, 16: 5.0})
    assert target.length == plain.length == 0
