"""Applying and undoing proposals, with full disks, links and killed processes."""

import errno
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import strategies as st

from localdflash.base.files import paths
from localdflash.chat.applying import MAX_CHANGE_SETS, ApplyResult, Journal, UndoResult, apply_proposals, undo_last
from localdflash.chat.proposals import FileProposal
from tests.chat.workplace import contents, make_files, proposal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_files(tmp_path / "work", {"a.txt": "a\n", "src/b.py": "b = 1\n", "c.txt": "c\n"})


@pytest.fixture
def folder() -> Path:
    return paths.data_folder() / "undo"


def _apply(root: Path, journal: Journal, **texts: bytes | None) -> ApplyResult:
    return apply_proposals(
        [proposal(root, name.replace("__", "/").replace("_", "."), text) for name, text in texts.items()], journal
    )


@pytest.mark.parametrize("on_disk", [True, False])
def test_apply_and_undo(root: Path, folder: Path, on_disk: bool) -> None:
    before = contents(root)
    journal = Journal(root, folder if on_disk else None)
    chosen = [
        proposal(root, "a.txt", b"A\r\n"),
        proposal(root, "new/deep/d.txt", b"d"),
        proposal(root, "c.txt", None),
    ]
    assert apply_proposals(chosen, journal) == ApplyResult(tuple(chosen))
    assert contents(root) == {"a.txt": b"A\r\n", "src/b.py": b"b = 1\n", "new/deep/d.txt": b"d"}
    assert journal.last() is not None
    assert undo_last(journal) == UndoResult(("a.txt", "new/deep/d.txt", "c.txt"))
    assert contents(root) == before
    assert sorted(os.listdir(root)) == ["a.txt", "c.txt", "src"]  # created folders are removed
    assert undo_last(journal) is None
    assert journal.last() is None
    assert not on_disk or os.listdir(folder) == []


def test_apply_and_undo_keep_file_modes(root: Path, folder: Path) -> None:
    journal, mode = Journal(root, folder), 0o600
    for name in ("a.txt", "c.txt"):
        (root / name).chmod(mode)
    _apply(root, journal, a_txt=b"2\n", c_txt=None)
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == mode
    undo_last(journal)
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == mode
    assert stat.S_IMODE((root / "c.txt").stat().st_mode) == mode


def test_journal_is_private(root: Path, folder: Path) -> None:
    _apply(root, Journal(root, folder), a_txt=b"2\n")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


def test_journal_keeps_the_newest_sets(root: Path, folder: Path) -> None:
    journal = Journal(root, folder)
    for number in range(MAX_CHANGE_SETS + 3):
        _apply(root, journal, a_txt=b"%d\n" % number)
    assert len(os.listdir(folder)) == MAX_CHANGE_SETS
    for _ in range(MAX_CHANGE_SETS):
        assert undo_last(journal) == UndoResult(("a.txt",))
    assert undo_last(journal) is None
    assert (root / "a.txt").read_bytes() == b"2\n"


def test_apply_stops_at_a_file_changed_meanwhile(root: Path, folder: Path) -> None:
    journal = Journal(root, folder)
    chosen = [proposal(root, name, b"2\n") for name in ("a.txt", "src/b.py", "c.txt")]
    (root / "src/b.py").write_bytes(b"theirs\n")
    outcome = apply_proposals(chosen, journal)
    assert outcome.written == (chosen[0],)
    assert outcome.problem.startswith("src/b.py was changed meanwhile")
    assert (root / "a.txt").read_bytes() == b"2\n"
    assert (root / "c.txt").read_bytes() == b"c\n"
    assert undo_last(journal) == UndoResult(("a.txt",))


def test_undo_skips_files_changed_since(root: Path, folder: Path) -> None:
    journal = Journal(root, folder)
    _apply(root, journal, a_txt=b"1\n")
    _apply(root, journal, a_txt=b"2\n", c_txt=b"2\n", n_txt=b"2\n")
    (root / "a.txt").write_bytes(b"theirs\n")
    undone = undo_last(journal)
    assert undone == UndoResult(("c.txt", "n.txt"), ("a.txt was changed since; it is not restored",))
    assert not (root / "n.txt").exists()
    assert (root / "a.txt").read_bytes() == b"theirs\n"
    # The older set comes next; a later run tries the skipped file again.
    assert undo_last(journal) == UndoResult((), ("a.txt was changed since; it is not restored",))
    (root / "a.txt").write_bytes(b"2\n")
    assert undo_last(Journal(root, folder)) == UndoResult(("a.txt",))
    assert (root / "a.txt").read_bytes() == b"1\n"


def test_undo_does_not_continue_with_an_older_set(root: Path, folder: Path) -> None:
    journal = Journal(root, folder)
    _apply(root, journal, a_txt=b"2\n")
    _apply(root, journal, c_txt=b"2\n")
    (root / "c.txt").write_bytes(b"c\n")  # reverted by another program
    assert undo_last(journal) == UndoResult(())
    assert (root / "a.txt").read_bytes() == b"2\n"
    assert undo_last(journal) == UndoResult(("a.txt",))


def test_proposal_with_a_problem_is_not_applied(root: Path, folder: Path) -> None:
    before = contents(root)
    outcome = apply_proposals([FileProposal("a.txt", None, None, problem="fits nowhere")], Journal(root, folder))
    assert outcome == ApplyResult((), "a.txt fits nowhere")
    assert contents(root) == before
    assert undo_last(Journal(root, folder)) is None


@pytest.mark.parametrize("path", ["../a.txt", ".git/config", "src/../../x"])
def test_apply_checks_file_names(root: Path, folder: Path, path: str) -> None:
    before = contents(root.parent)
    assert apply_proposals([FileProposal(path, None, b"x", "new")], Journal(root, folder)).problem
    assert contents(root.parent).keys() - before.keys() == set()


def test_undo_is_in_memory_without_a_journal_folder(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(root, tmp_path / "file" / "undo")
    outcome = _apply(root, journal, a_txt=b"2\n")
    assert "undo is possible only until you leave" in outcome.notice
    assert "\n" not in outcome.notice
    assert undo_last(journal) == UndoResult(("a.txt",))


TEXTS = st.one_of(st.none(), st.binary(max_size=50))


@pytest.fixture
def journal(root: Path) -> Journal:
    return Journal(root, paths.data_folder() / "undo")


def _failing(code: int) -> Callable[..., NoReturn]:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod", "open"])
def test_full_disk_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    journal, code = Journal(root), errno.ENOSPC
    before = contents(root)
    chosen = [proposal(root, "a.txt", b"2\n"), proposal(root, "n/n.txt", b"2\n")]
    original = os.open

    def open_(path: str, flags: int, *rest: Any, **named: Any) -> int:
        return _failing(code)() if flags & os.O_CREAT else original(path, flags, *rest, **named)

    monkeypatch.setattr(os, call, open_ if call == "open" else _failing(code))
    outcome = apply_proposals(chosen, journal)
    monkeypatch.undo()
    assert outcome.written == ()
    assert outcome.problem == f"a.txt cannot be written: {os.strerror(code)}"
    assert contents(root) == before
    assert undo_last(journal) is None


def _swap(root: Path, name: str, outside: Path) -> None:
    """Replace a folder, or the file, by a link, as an attacker might between check and write."""
    first = name.split("/", maxsplit=1)[0]
    (root / first).rename(root / "moved")
    (root / first).symlink_to(outside / first if (outside / first).exists() else outside)


@pytest.mark.parametrize("name", ["src/b.py", "src/new.py"])
@pytest.mark.parametrize("call", ["fsync", "open", "replace", "link", "fchmod"])
def test_link_created_during_a_write_is_not_followed(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, name: str, call: str
) -> None:
    outside = make_files(root.parent / "outside", {"b.py": "theirs\n", "a.txt": "theirs\n"})
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
    """Apply or undo changes, and kill this process before system call number `step`."""
    remaining = [step]

    def count_down(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*given: Any, **named: Any) -> Any:
            if remaining[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            remaining[0] -= 1
            return call(*given, **named)

        return wrapper

    exit_now = os._exit
    try:
        journal = Journal(root, folder)
        for name in ("open", "fsync", "rename", "replace", "link", "unlink", "fchmod", "mkdir", "rmdir", "close"):
            setattr(os, name, count_down(getattr(os, name)))
        if what == "apply":
            new = FileProposal("n/n.txt", None, b"2\n", "new")
            changed, gone = FileProposal("a.txt", b"a\n", b"2\n"), FileProposal("src/b.py", b"b = 1\n", None, "delete")
            apply_proposals([changed, new, gone], journal)
        else:
            undo_last(journal)
    except BaseException:
        exit_now(1)
    exit_now(0)


def _run(root: Path, folder: Path, what: str, step: int) -> int:
    """Change files in a child that is killed at this call; return its exit code."""
    child = os.fork()
    if not child:
        change_until(root, folder, what, step)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_kill_during_apply_leaves_old_or_new_files_and_undo_works(tmp_path: Path) -> None:
    old = {"a.txt": b"a\n", "src/b.py": b"b = 1\n"}
    new = {"a.txt": b"2\n", "n/n.txt": b"2\n"}
    for step in range(100):
        root, folder = make_files(tmp_path / str(step), old), tmp_path / f"{step}-undo"
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
    raise AssertionError("every step was killed")


def test_kill_during_undo_can_be_undone(tmp_path: Path) -> None:
    old = {"a.txt": b"a\n", "src/b.py": b"b = 1\n"}
    for step in range(0, 100, 5):
        root, folder = make_files(tmp_path / str(step), old), tmp_path / f"{step}-undo"
        assert _run(root, folder, "apply", 1_000) == 0
        killed = _run(root, folder, "undo", step) == -signal.SIGKILL
        undo_last(Journal(root, folder))
        assert contents(root) == old, step
        if not killed:
            return
    raise AssertionError("every step was killed")


def test_journal_ignores_pipes_folders_and_garbage(root: Path) -> None:
    folder = paths.data_folder() / "undo"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "00000000000000000001-aa.json")
    (folder / "00000000000000000002-aa.json").mkdir()
    (folder / "00000000000000000003-aa.json").write_bytes(b"\0 no journal")
    assert Journal(root, folder).last() is None
