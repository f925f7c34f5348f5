"""Greedy verification: the engine's own argmax is that of the logits it would write out, the lowest id among equals."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.base.errors import LocaldflashError
from localdflash.engine.draft import Draft
from tests.backends.cpu.conftest import needs_library

pytestmark = needs_library
DRAFT = Draft("test", (5, 9, 2), (0.5, 0.5, 0.5))


def test_the_likeliest_tokens_and_taps_are_those_of_a_verify(
    tiny_pair: Path, new_team: Callable[..., ThreadPool]
) -> None:
    target = CpuTarget(open_target(tiny_pair / "target.gguf"), new_team(), taps=(0,))
    target.extend([1, 2, 3])
    verified = target.verify(4, DRAFT)
    logits, taps = verified.logits.copy(), target.tapped(4)
    likeliest, features = target.verify_greedy(4, DRAFT)
    assert likeliest == logits.argmax(1).tolist()
    assert features is not None
    assert np.array_equal(features, taps)


def test_logits_that_are_not_numbers_are_refused(tiny_pair: Path, new_team: Callable[..., ThreadPool]) -> None:
    packed = open_target(tiny_pair / "target.gguf")
    packed = replace(packed, norm=np.full_like(packed.norm, np.nan))
    target = CpuTarget(packed, new_team())
    with pytest.raises(LocaldflashError, match="not numbers"):
        target.verify_greedy(4, DRAFT)
