"""Physical cores on simulated machines."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from localdflash.base.machine import cgroups, cores


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(cgroups, "folders", lambda: [tmp_path / "unit", tmp_path])
    cores.physical_cores.cache_clear()
    yield
    cores.physical_cores.cache_clear()


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return a function that sets each processor's list of siblings, and the allowed processors."""
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")

    def simulate(*siblings: str, allowed: set[int]) -> None:
        for processor, text in enumerate(siblings):
            folder = tmp_path / f"cpu{processor}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{text}\n")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _process: allowed, raising=False)

    return simulate


@pytest.mark.parametrize(
    ("siblings", "allowed", "found"),
    [
        (("0,2", "1,3", "0,2", "1,3"), {0, 1, 2, 3}, [0, 1]),
        (("0-1", "0-1", "2-3", "2-3"), {0, 1, 2, 3}, [0, 2]),
        (("0-1", "0-1", "2-3", "2-3"), {1, 2, 3}, [1, 2]),
        (("0-1", "0-1", "2-3", "2-3"), {3}, [3]),
        ((), {4, 7}, [4, 7]),
        (("", "x-y"), {0, 1}, [0, 1]),
    ],
)
def test_one_processor_of_each_core(
    siblings: tuple[str, ...], allowed: set[int], found: list[int], processors: Callable[..., None]
) -> None:
    processors(*siblings, allowed=allowed)
    assert cores.physical_cores() == found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("max 100000", 4),
        ("150000 100000", 2),
        ("1000 100000", 1),
        ("", 4),
    ],
)
def test_a_container_has_no_more_cores_than_its_share_of_time(
    text: str, count: int, processors: Callable[..., None], tmp_path: Path
) -> None:
    processors("0", "1", "2", "3", allowed={0, 1, 2, 3})
    (tmp_path / "cpu.max").write_text(text)
    assert cores.core_count() == count
    assert cores.physical_cores() == [0, 1, 2, 3]  # threads run on any core: other containers use the lowest too


def test_other_systems_report_the_core_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8 if logical else 6)
    assert cores.physical_cores() == [0, 1, 2, 3, 4, 5]


def test_more_threads_than_cores_are_clamped_with_a_notice(processors: Callable[..., None]) -> None:
    processors("0", "1", allowed={0, 1})
    assert cores.clamp(64) == (2, "2 of 64 threads are used: one per core")
