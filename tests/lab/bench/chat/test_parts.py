"""Where a step's time goes: the parts are those of a clock that a test moves, and objects are left as they were."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from localdflash.engine import generate
from localdflash.engine.generate import Request
from localdflash.engine.host_pair import HostPair
from localdflash.engine.stats import Stats
from localdflash.lab.bench.chat import step_parts as measuring

Make = Callable[..., Any]
TABLE = np.zeros((4, 4, 4), np.float32)


@pytest.mark.parametrize("drafts", [True, False])
def test_parts_add_up_to_the_whole(drafts: bool, fake_target: Make, fake_drafter: Make, eager: Make) -> None:
    drafter = fake_drafter("x", lambda ids, limit: ([0] * min(limit, 2), [1.0] * min(limit, 2)))
    pair = HostPair(fake_target(TABLE), [drafter], eager("x")) if drafts else HostPair(fake_target(TABLE))
    total = Stats()

    def answer() -> Stats:
        request = Request([1, 2, 3], 12)
        list(generate.generate(pair, request))
        total.merge(request.stats)
        return request.stats

    found = measuring.parts(pair, answer)
    assert list(found) == ["draft", "verify", "accept", "observe", "python"]
    assert sum(found.values()) == pytest.approx(total.total_ms / total.steps, abs=1e-3)
    assert (found["draft"] > 0) == drafts
    assert not {"verify", "keep"} & vars(pair.target).keys()
    assert not {"propose", "observe"} & vars(drafter).keys()
