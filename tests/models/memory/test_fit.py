"""Drafter and context when memory is short: the order of reductions and the messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import OutOfMemory
from localdflash.base.machine import cgroups
from localdflash.models.memory import free
from localdflash.models.memory.fit import (
    NO_DRAFTER,
    STEP,
    UNCHANGED,
    MemoryBudget,
    best_quantization,
    fit,
    largest_context,
    weights_of,
)
from localdflash.models.memory.parts import DRAFTER, TARGET, TARGET_KV, Parts

MB = 10**6


@dataclass(frozen=True)
class Simple:
    """Sizes of a target of 1000 MB, 0.1 MB per token, and a drafter."""

    trained: int = 8192
    drafters: Sequence[str] = ("8 bits", "4 bits", NO_DRAFTER)

    def parts(self, context: int, drafter: str) -> Parts:
        sizes = {"8 bits": 400, "4 bits": 200, UNCHANGED: 300, NO_DRAFTER: 0}
        return {TARGET: 1000 * MB, DRAFTER: sizes[drafter] * MB, TARGET_KV: context * MB // 10}


def budget(megabytes: int) -> MemoryBudget:
    return MemoryBudget((megabytes + 50) * MB, 50 * MB, "memory")


@pytest.mark.parametrize(
    ("free", "expected", "drafter", "context"),
    [
        (2220, 8192, "8 bits", 8192),
        (2219, 8192, "4 bits", 8192),
        (1820, 0, "8 bits", 4096),
        (1700, 0, "4 bits", 4864),
        (1500, 0, NO_DRAFTER, 4864),
        (1100, 0, NO_DRAFTER, 768),
    ],
)
def test_the_drafter_shrinks_then_goes_before_the_context_does(
    free: int, expected: int, drafter: str, context: int
) -> None:
    chosen = fit(Simple(), budget(free), expected)
    assert (chosen.drafter, chosen.context) == (drafter, context)


@pytest.mark.parametrize(
    ("free", "expected", "fits"), [(2220, 0, True), (2219, 0, False), (1820, 4096, True), (1700, 4096, False)]
)
def test_roomy_pair_has_drafter_and_context_or_is_refused(free: int, expected: int, fits: bool) -> None:
    assert fit(Simple(), budget(free), expected).context, "another one would do with less"
    if fits:
        assert fit(Simple(), budget(free), expected, can_evict=True).drafter == "8 bits"
        return
    with pytest.raises(OutOfMemory, match="of it as margin"):
        fit(Simple(), budget(free), expected, can_evict=True)


def test_requested_context_is_never_reduced() -> None:
    with pytest.raises(OutOfMemory) as error:
        fit(Simple(), budget(1500), 8192)
    assert str(error.value) == (
        "a context of 8192 tokens needs 1.87 GB even without the drafter (50.0 MB of it as margin),"
        " 1.55 GB of memory are free; --context 4864 fits"
    )


@given(st.integers(0, 3_000), st.integers(1, 100_000))
def test_the_largest_context_fits_and_one_step_more_does_not(free: int, max_context: int) -> None:
    sizes, limits = Simple(), budget(free)
    actual = largest_context(sizes, NO_DRAFTER, limits, max_context)
    assert actual == max_context or actual % STEP == 0
    assert actual == 0 or limits.holds(sizes.parts(actual, NO_DRAFTER))
    assert actual == max_context or not limits.holds(sizes.parts(min(actual + STEP, max_context), NO_DRAFTER))


@pytest.mark.parametrize(("free", "best"), [(2100, "F16"), (2000, "Q8_0"), (600, "Q4_0"), (1, None)])
def test_the_best_quantization_is_the_first_that_fits(free: int, best: str | None) -> None:
    candidates = weights_of(1000 * MB, 10 * MB)
    assert best_quantization({TARGET: 1, TARGET_KV: MB}, MemoryBudget(free * MB, 0, "memory"), candidates) == best


@pytest.fixture(autouse=True)
def nothing_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free, "mapped_bytes", lambda: 0)


@pytest.mark.parametrize(
    ("limit", "current", "available"),
    [("2000", 1500, 820), ("max", 1500, 5000), ("9000", 100, 5000), ("100", 1500, 0)],
)
def test_a_containers_limit_counts_and_files_do_not(
    limit: str, current: int, available: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5000))
    monkeypatch.setattr(cgroups, "folders", lambda: [tmp_path / "unit", tmp_path])
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{current}\n")
    (tmp_path / "memory.stat").write_text("anon 5\nactive_file 20\ninactive_file 300\n")
    assert free.system_budget().free == available


def test_files_in_use_are_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a pair that is loaded are page cache to the system."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5000))
    monkeypatch.setattr(cgroups, "folders", lambda: [tmp_path / "none"])
    monkeypatch.setattr(free, "mapped_bytes", lambda: 1200)
    assert free.system_budget().free == 3800
    monkeypatch.setattr(free, "mapped_bytes", lambda: 9000)
    assert free.system_budget().free == 0
