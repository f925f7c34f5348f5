"""Locks of open files: shared or exclusive, of a descriptor, and gone with its process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.base.system import file_lock

HOLD = "import os, sys; from localdflash.base.system import file_lock; file = os.open(sys.argv[1], os.O_RDWR)\n"
HOLD += "print(file_lock.take(file, shared=sys.argv[2] == 'shared'), flush=True); sys.stdin.read()"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("content")
    return tmp_path / "file"


@pytest.fixture
def two(path: Path) -> Iterator[tuple[int, int]]:
    files = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    yield files
    for file in files:
        os.close(file)


def test_one_excludes_another_descriptor_of_this_process(two: tuple[int, int]) -> None:
    assert file_lock.take(two[0])
    assert not file_lock.take(two[1])
    assert not file_lock.take(two[1], shared=True)
    assert os.read(two[1], 100) == b"content"  # which may read


def test_many_share_it_and_keep_others_from_having_it_alone(two: tuple[int, int]) -> None:
    assert file_lock.take(two[0], shared=True)
    assert file_lock.take(two[1], shared=True)
    assert not file_lock.take(two[0])


@pytest.mark.parametrize("kind", ["shared", "alone"])
def test_it_ends_with_a_process_that_is_killed(kind: str, path: Path) -> None:
    command = [sys.executable, "-P", "-c", HOLD, str(path), kind]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "True\n"
    mine = os.open(path, os.O_RDWR)
    assert not file_lock.take(mine)
    assert file_lock.take(mine, shared=True) is (kind == "shared")
    holder.kill()
    holder.communicate()
    assert file_lock.take(mine)
    os.close(mine)
