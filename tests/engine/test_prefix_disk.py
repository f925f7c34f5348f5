"""Saved sequences across processes: identical bytes come back, and damaged files are dropped."""

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from localdflash.engine.pair import SavedSequence, StateLost
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.prefix_disk import DiskCache

BIG = 1 << 20


def state(first: int, length: int = 50) -> SavedSequence:
    ids, drafters = tuple(range(first, first + length)), (b"", b"y" * length)
    return SavedSequence(ids, b"x" * 40 * length, drafters, tokens_in_blocks=length // 2)


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_a_state_comes_back_in_another_process(tmp_path: Path) -> None:
    for saved in (state(0), state(1000)):
        DiskCache(tmp_path, "model", BIG).write(saved)
    disk = DiskCache(tmp_path, "model", BIG)
    assert disk.find_longest([*range(1000, 1040), 7], 32) == state(1000)
    assert disk.find_longest(list(range(40)), 40) == state(0)
    assert disk.find_longest(list(range(40)), 41) is None
    assert DiskCache(tmp_path, "another model", BIG).find_longest(list(range(50)), 1) is None


def test_state_files_are_private(tmp_path: Path) -> None:
    DiskCache(tmp_path / "kv", "model", BIG).write(state(0))
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_longer_state_replaces_what_it_contains(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path, "model", BIG)
    for length in (50, 60, 70, 70):
        disk.write(state(0, length))
    assert len(files(tmp_path)) == 1
    assert disk.find_longest(list(range(70)), 70) == state(0, 70)


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    budget = 3 * 2600
    disk = DiskCache(tmp_path, "model", budget)
    for i in range(3):
        disk.write(state(i * 1000))
    for i, path in enumerate(disk._known):
        os.utime(path, (i, i))
    assert disk.find_longest(list(range(50)), 50)  # used, so now the newest
    disk.write(state(5000))
    assert sum(path.stat().st_size for path in files(tmp_path)) <= budget
    assert disk.find_longest(list(range(1000, 1050)), 50) is None
    assert disk.find_longest(list(range(50)), 50) == state(0)
    assert disk.find_longest(list(range(5000, 5050)), 50) == state(5000)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_dropped(tmp_path: Path, data: st.DataObject) -> None:
    DiskCache(tmp_path, "model", BIG).write(state(0))
    (file,) = files(tmp_path)
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[place:]
    file.write_bytes(content)
    found = DiskCache(tmp_path, "model", BIG).find_longest(list(range(50)), 1)
    assert found in (None, state(0))  # a changed byte of the header may have no meaning
    if found is None:
        DiskCache(tmp_path, "model", BIG).write(state(0))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"junk", b"\xff" * 64),
        *(save({"ids": np.asarray(ids)}) for ids in (np.full(50, np.nan, np.float32), np.zeros((5, 10)), np.int32(7))),
    ],
)
def test_foreign_file_is_dropped(tmp_path: Path, content: bytes) -> None:
    folder = DiskCache(tmp_path, "model", BIG).folder
    folder.mkdir()
    (folder / f"{'0' * 32}.safetensors").write_bytes(content)
    assert DiskCache(tmp_path, "model", BIG).find_longest([1], 0) is None
    assert files(tmp_path) == []


def test_unfinished_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    folder = DiskCache(tmp_path, "another model", BIG).folder
    folder.mkdir()
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (folder / f"{'0' * 32}.{process.pid}").write_bytes(b"x" * 1000)
    impossible = folder / f"{'0' * 32}.{10**30}"  # no process has such an id
    impossible.write_bytes(b"x")
    unfinished = folder / f"{'0' * 32}.{os.getpid()}"  # of another cache that is writing now
    unfinished.write_bytes(b"x")
    DiskCache(tmp_path, "model", BIG)
    assert set(files(tmp_path)) == {unfinished, impossible}


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="space"):
        DiskCache(tmp_path, "model", BIG).write(state(0))
    assert files(tmp_path) == []


@pytest.mark.parametrize(("live", "written"), [(31, [0, 2000]), (32, [0, 2000, 5000])])
def test_lost_or_short_states_are_not_written(tmp_path: Path, live: int, written: list[int]) -> None:
    def fail() -> None:
        raise StateLost("it is gone")

    class Idle:
        cached = range(live)

        def save(self) -> SavedSequence:
            return state(5000, live)

    disk = DiskCache(tmp_path, "model", BIG)
    prefixes = PrefixCache(BIG, disk)
    for saved in (state(0), replace(state(1000), wait=fail), state(2000)):
        prefixes._put(saved)
    prefixes.write_to_disk(Idle())  # type: ignore[arg-type]
    assert sorted(known.ids[0] for known in disk._known.values()) == written
