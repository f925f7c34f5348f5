"""Fuzzing for a set time: LOCALDFLASH_FUZZ_SECONDS for each fuzzer, 4 unless a target of the Makefile sets it."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

SECONDS = float(os.environ.get("LOCALDFLASH_FUZZ_SECONDS", "4"))
LEAST = 100  # cases, however long they take
ROUND = 2000  # examples; hypothesis remembers those of a round

long_enough = pytest.mark.timeout(SECONDS + 100)  # shrinking what was found takes its time too

T = TypeVar("T")


class _TimeIsUp(BaseException):
    """Signal that ends a round; not an Exception, which hypothesis would report as a failure."""


def fuzz(cases: SearchStrategy[T], check: Callable[[T], None], least: int = LEAST) -> None:
    """Check cases until the time is up, but `least` of them. One that fails is shrunk and printed by hypothesis."""
    checked, failed, end = 0, False, time.monotonic() + SECONDS

    @settings(max_examples=ROUND, deadline=None, derandomize=False, suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def one_round(case: T) -> None:
        nonlocal checked, failed
        if not failed and checked >= least and time.monotonic() > end:
            raise _TimeIsUp
        checked += 1
        try:
            check(case)
        except Exception:
            failed = True  # shrinking goes on after the time
            raise

    with suppress(_TimeIsUp):
        while True:
            one_round()
    print(f"{checked} cases in {SECONDS:g} s")  # noqa: T201  # for `make fuzz`
