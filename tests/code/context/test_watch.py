"""Changes on disk reach the index, whatever way editors and tools make them."""

import errno
import os
import shutil
from collections.abc import Callable
from typing import NoReturn

import pytest
from watchdog.observers import inotify_c

from tests.code.context.conftest import PATIENCE, Opened, Opens, until


@pytest.fixture
def opened(open_workspace: Opens) -> Opened:
    return open_workspace({"a.py": "def f(): pass", "pkg/b.py": "def g(): pass", "pkg/deep/c.py": "def h(): pass"})


def test_a_new_a_changed_and_a_renamed_file(opened: Opened) -> None:
    opened.write("new.py", "def f(): pass")
    assert opened.comes("f", "a.py", "new.py")
    opened.write("a.py", "def other(): pass")
    assert opened.comes("other", "a.py")
    assert opened.comes("f", "new.py")
    (opened.root / "new.py").rename(opened.root / "New.py")
    assert opened.comes("f", "New.py")
    (opened.root / "New.py").rename(opened.root / "pkg" / "z.py")
    assert opened.comes("f", "pkg/z.py")


def test_folders_that_come_move_and_go(opened: Opened) -> None:
    source = opened.root.parent / "source"
    shutil.copytree(opened.root / "pkg", source)
    source.rename(opened.root / "moved.in")
    assert opened.comes("h", "moved.in/deep/c.py", "pkg/deep/c.py")
    opened.write("moved.in/deep/later.py", "def later(): pass")
    assert opened.comes("later", "moved.in/deep/later.py")
    shutil.rmtree(opened.root / "moved.in")
    assert opened.comes("h", "pkg/deep/c.py")
    (opened.root / "pkg").rename(opened.root / "renamed")
    assert opened.comes("h", "renamed/deep/c.py")
    opened.write("renamed/deep/c.py", "def changed(): pass")
    assert opened.comes("changed", "renamed/deep/c.py")


def test_ignore_files_are_read_again(opened: Opened) -> None:
    opened.write(".gitignore", "pkg/")
    assert opened.comes("h")
    opened.write(".localdflashignore", "!pkg/\ndeep/")
    assert opened.comes("g", "pkg/b.py")
    assert opened.paths("h") == []
    (opened.root / ".localdflashignore").unlink()
    (opened.root / ".gitignore").unlink()
    assert opened.comes("h", "pkg/deep/c.py")
    opened.write("pkg/.gitignore", "b.py")
    assert opened.comes("g")


def test_a_folder_that_is_ignored_no_longer_is_watched(open_workspace: Opens) -> None:
    opened = open_workspace({".gitignore": "made/", "made/deep/a.py": "def f(): pass"})
    opened.write(".gitignore", "")
    assert opened.comes("f", "made/deep/a.py")
    opened.write("made/deep/a.py", "def g(): pass")
    assert opened.comes("g", "made/deep/a.py")


def test_lost_events_are_made_up_for(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    observer = opened.workspace._observer
    assert observer
    (emitter,) = observer.emitters
    monkeypatch.setattr(emitter, "queue_event", lambda event: None)
    (opened.root / "a.py").unlink()
    opened.write("new.py", "def new(): pass")
    emitter._inotify.on_queue_overflow()  # type: ignore[attr-defined]
    assert opened.comes("f")
    assert opened.comes("new", "new.py")


def no_more(code: int) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("code", "where", "remedy"),
    [
        (errno.ENOSPC, "_get_or_create_watch", "fs.inotify.max_user_watches"),
        (errno.EMFILE, "_create_inotify_fd", "fs.inotify.max_user_instances"),
        (errno.EACCES, "_create_inotify_fd", "opened or saved"),
    ],
)
def test_no_watches_left(
    open_workspace: Opens, monkeypatch: pytest.MonkeyPatch, code: int, where: str, remedy: str
) -> None:
    monkeypatch.setattr(inotify_c.InotifyFD, where, no_more(code))
    opened = open_workspace({"a.py": "def f(): pass", "pkg/b.py": "def g(): pass"})
    assert opened.paths("f") == ["a.py"]
    assert len(opened.warnings) == 1
    assert remedy in opened.warnings[0]
    assert "\n" not in opened.warnings[0]
    opened.write("a.py", "def saved(): pass")
    opened.write(".gitignore", "pkg/")
    opened.workspace.refresh(opened.root / "a.py")
    opened.workspace.refresh(opened.root / ".gitignore")
    assert opened.comes("saved", "a.py")
    assert opened.comes("g")
    assert not opened.workspace.allowed(opened.root / "pkg" / "b.py")
    assert len(opened.warnings) == 1


@pytest.mark.parametrize("later", [False, True])
def test_watches_that_run_out_on_the_way(open_workspace: Opens, monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    original = inotify_c.InotifyFD._get_or_create_watch
    left = [1000 if later else 3]

    def add(self: inotify_c.InotifyFD, path: bytes, mask: inotify_c.Mask) -> inotify_c.Watch:
        left[0] -= 1
        return original(self, path, mask) if left[0] >= 0 else no_more(errno.ENOSPC)()

    monkeypatch.setattr(inotify_c.InotifyFD, "_get_or_create_watch", add)
    opened = open_workspace({f"{at}/a.py": "def f(): pass" for at in range(9)})
    left[0] = 0
    if later:
        opened.write("new/a.py", "def f(): pass")
    assert until(lambda: len(opened.warnings) == 1)
    assert until(lambda: opened.workspace._observer is None)
    assert opened.workspace.settled(PATIENCE)
    assert len(opened.paths("f")) == 9 + later
    assert len(opened.warnings) == 1
