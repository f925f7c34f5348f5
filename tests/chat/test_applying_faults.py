"""Full disks, folders that cannot be written, links that appear, kill -9: a file is the old one or the new one."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from localdflash.base.files import paths
from localdflash.chat.applying import Journal, UndoResult, apply_proposals, undo_last
from localdflash.chat.proposals import FileProposal
from tests.chat.workplace import contents, made, proposal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "work", {"a.txt": "a\n", "src/b.py": "b = 1\n"})


@pytest.fixture
def journal(root: Path) -> Journal:
    return Journal(root, paths.data_folder() / "undo")


def _failing(code: int) -> Callable[..., NoReturn]:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod", "open"])
def test_a_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    journal, code = Journal(root), errno.ENOSPC
    before = contents(root)
    chosen = [proposal(root, "a.txt", b"2\n"), proposal(root, "n/n.txt", b"2\n")]
    original = os.open

    def open_(path: str, flags: int, *rest: Any, **named: Any) -> int:
        return _failing(code)() if flags & os.O_CREAT else original(path, flags, *rest, **named)

    monkeypatch.setattr(os, call, open_ if call == "open" else _failing(code))
    outcome = apply_proposals(chosen, journal)
    monkeypatch.undo()
    assert outcome.done == ()
    assert outcome.problem == f"a.txt cannot be written: {os.strerror(code)}"
    assert contents(root) == before
    assert undo_last(journal) is None


def test_the_ones_before_a_full_disk_stay(root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [proposal(root, "a.txt", b"2\n"), proposal(root, "n/m/n.txt", b"2\n"), proposal(root, "src/b.py", b"2\n")]
    monkeypatch.setattr(os, "link", _failing(errno.ENOSPC))
    outcome = apply_proposals(chosen, journal)
    monkeypatch.undo()
    assert outcome.done == (chosen[0],)
    assert outcome.problem == "n/m/n.txt cannot be written: No space left on device"
    assert contents(root) == {"a.txt": b"2\n", "src/b.py": b"b = 1\n"}
    assert not (root / "n").exists()
    assert undo_last(journal) == UndoResult(("a.txt",))


def _swap(root: Path, name: str, outside: Path) -> None:
    """Replace a folder, or the file, by a link, as an attacker would between check and write."""
    first = name.split("/", maxsplit=1)[0]
    (root / first).rename(root / "moved")
    (root / first).symlink_to(outside / first if (outside / first).exists() else outside)


@pytest.mark.parametrize("name", ["src/b.py", "src/new.py"])
@pytest.mark.parametrize("call", ["fsync", "open", "replace", "link", "fchmod"])
def test_a_link_that_appears_at_any_time_leads_nowhere(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, name: str, call: str
) -> None:
    outside = made(root.parent / "outside", {"b.py": "theirs\n", "a.txt": "theirs\n"})
    before = contents(outside)
    chosen = proposal(root, name, b"2\n")
    original = getattr(os, call)
    swapped: list[bool] = []

    def swapping(*given: Any, **named: Any) -> Any:
        inside = call != "open" or (given[1] & os.O_CREAT and "dir_fd" in named)
        if inside and not swapped:
            swapped.append(True)
            _swap(root, name, outside)
        return original(*given, **named)

    monkeypatch.setattr(os, call, swapping)
    apply_proposals([chosen], Journal(root))
    undo_last(Journal(root))
    monkeypatch.undo()
    assert contents(outside) == before


def change_until(root: Path, folder: Path, what: str, step: int) -> NoReturn:
    """Apply or undo changes, and kill this process before the system call of this number."""
    left = [step]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*given: Any, **named: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*given, **named)

        return wrapper

    leave = os._exit
    try:
        journal = Journal(root, folder)
        for name in ("open", "fsync", "rename", "replace", "link", "unlink", "fchmod", "mkdir", "rmdir", "close"):
            setattr(os, name, counted(getattr(os, name)))
        if what == "apply":
            new = FileProposal("n/n.txt", None, b"2\n", "new")
            changed, gone = FileProposal("a.txt", b"a\n", b"2\n"), FileProposal("src/b.py", b"b = 1\n", None, "delete")
            apply_proposals([changed, new, gone], journal)
        else:
            undo_last(journal)
    except BaseException:
        leave(1)
    leave(0)


def _run(root: Path, folder: Path, what: str, step: int) -> int:
    """Change files in a child that is killed at this call; return how it ended."""
    child = os.fork()
    if not child:
        change_until(root, folder, what, step)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_any_step_a_file_is_old_or_new_and_undo_works(tmp_path: Path) -> None:
    old = {"a.txt": b"a\n", "src/b.py": b"b = 1\n"}
    new = {"a.txt": b"2\n", "n/n.txt": b"2\n"}
    for step in range(100):
        root, folder = made(tmp_path / str(step), old), tmp_path / f"{step}-undo"
        killed = _run(root, folder, "apply", step) == -signal.SIGKILL
        found = {name: text for name, text in contents(root).items() if not name.endswith(".tmp")}
        assert all(text in (old.get(name), new.get(name)) for name, text in found.items()), step
        assert "a.txt" in found
        assert killed or found == new
        undo_last(Journal(root, folder))
        assert contents(root) == old, step
        assert sorted(os.listdir(root)) == ["a.txt", "src"], step
        if not killed:
            assert step > 15
            return
    raise AssertionError("it never came to an end")


def test_killed_while_undoing(tmp_path: Path) -> None:
    old = {"a.txt": b"a\n", "src/b.py": b"b = 1\n"}
    for step in range(0, 100, 5):
        root, folder = made(tmp_path / str(step), old), tmp_path / f"{step}-undo"
        assert _run(root, folder, "apply", 1_000) == 0
        killed = _run(root, folder, "undo", step) == -signal.SIGKILL
        undo_last(Journal(root, folder))
        assert contents(root) == old, step
        if not killed:
            return
    raise AssertionError("it never came to an end")


def test_a_journal_with_things_that_are_no_files(root: Path) -> None:
    folder = paths.data_folder() / "undo"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "00000000000000000001-aa.json")
    (folder / "00000000000000000002-aa.json").mkdir()
    (folder / "00000000000000000003-aa.json").write_bytes(b"\0 no journal")
    assert Journal(root, folder).last() is None
