from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from localdflash.models.memory import free


@pytest.fixture(autouse=True)
def nothing_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free, "mapped", lambda: 0)


@pytest.mark.parametrize(
    ("limit", "current", "available"),
    [("2000", 1500, 820), ("max", 1500, 5000), ("9000", 100, 5000), ("100", 1500, 0)],
)
def test_a_containers_limit_counts_and_files_do_not(
    limit: str, current: int, available: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5000))
    monkeypatch.setattr(free, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{current}\n")
    (tmp_path / "memory.stat").write_text("anon 5\nactive_file 20\ninactive_file 300\n")
    assert free.system_budget().free == available


def test_files_in_use_are_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a pair that is loaded are page cache to the system."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5000))
    monkeypatch.setattr(free, "CGROUP", tmp_path / "none")
    monkeypatch.setattr(free, "mapped", lambda: 1200)
    assert free.system_budget().free == 3800
    monkeypatch.setattr(free, "mapped", lambda: 9000)
    assert free.system_budget().free == 0
