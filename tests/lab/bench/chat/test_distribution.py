"""χ² test: equals scipy's, passes for drafting, fails for a slightly lossy acceptance."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from localdflash.engine import host_pair
from localdflash.engine.draft import Draft
from localdflash.engine.host_pair import HostPair
from localdflash.lab.bench.chat import distribution
from localdflash.lab.bench.chat.chat_modes import Hosts

Make = Callable[..., Any]
TABLE = np.random.default_rng(0).normal(0, 1.0, (4, 4, 4)).astype(np.float32)
PROMPTS = [[2, 1], [0, 3, 3]]


@pytest.fixture
def hosts(fake_target: Make, fake_drafter: Make, eager: Make) -> Hosts:
    """Return a pair that drafts the target's likeliest tokens, and the target alone."""

    def likeliest(ids: list[int], limit: int) -> tuple[list[int], list[float]]:
        found = list(ids)
        for _ in range(limit):
            found.append(int(TABLE[found[-2], found[-1]].argmax()))
        return found[len(ids) :], [1.0] * limit

    drafting = HostPair(fake_target(TABLE), [fake_drafter("x", likeliest)], eager("x"))
    return Hosts(drafting, HostPair(fake_target(TABLE)))


def test_drafting_samples_from_the_targets_distribution(hosts: Hosts) -> None:
    usual, moved = hosts.drafting.controller, []
    found = distribution.check(hosts, PROMPTS, 0.7, 800, lambda: moved.append(1))
    assert found["p_value"] > 0.01
    assert found["draws"] == 1600
    assert 0 < found["drafted_tokens_drawn"] < 1600
    assert len(moved) == 2
    assert hosts.drafting.controller is usual
    assert hosts.drafting.ids == hosts.plain.ids == []


def test_a_lossy_acceptance_fails_the_test(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(draft: Draft, logits: Any, sampler: Any, ids: Any, limit: int, ends: Any) -> list[int]:
        if draft and sampler._random.random() < 0.5:  # takes the likeliest token in place of a draw
            return [draft.tokens[0]]
        return [sampler.sample(logits[0], [])]

    monkeypatch.setattr(host_pair, "accept", lossy)
    assert distribution.check(hosts, PROMPTS, 0.7, 800)["p_value"] < 1e-4
