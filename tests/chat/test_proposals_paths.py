"""Which files an answer may change at all: none outside the root, no secret, nothing but plain, small text."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from localdflash.chat.proposals import propose
from tests.chat.workplace import contents, made, problem

ATTACKS = [
    ("/etc/passwd", "not a path below"),
    ("//host/share/a.py", "not a path below"),
    ("~/a.py", "not a path below"),
    ("C:/a.py", "not a path below"),
    ("src\\a.py", "not a path below"),
    ("../a.py", "leads out"),
    ("src/../../a.py", "leads out"),
    ("..", "leads out"),
    (".", "not the name of a file"),
    ("src//a.py", "not the name of a file"),
    ("src/", "not the name of a file"),
    ("src/a.py.", "not the name of a file"),
    ("src/.../a.py", "not the name of a file"),
    (".git/config", "version control"),
    (".GIT/config", "version control"),
    ("GIT~1/config", "version control"),
    (".hg/hgrc", "version control"),
    (".git\u200c/config", "cannot be seen"),
    ("src/\u202eyp.a", "cannot be seen"),
    ("src/a\x00.py", "cannot be seen"),
    ("src/.env.local", "secret"),
    ("deploy/server.key", "secret"),
    (".ssh/config", "secret"),
    ("build/out.py", "ignored"),
    ("kept.secretly", "ignored"),
    ("src/link.py", "is a link"),
    ("src/outside.py", "is a link"),
    ("src/dangling.py", "is a link"),
    ("linked/a.py", "reached through a link"),
    ("elsewhere/a.py", "reached through a link"),
    ("src/a.py/b.py", "no folder"),
    ("src", "not a plain file"),
    ("src/pipe", "not a plain file"),
    ("x" * 300 + ".py", "too long"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    outside = made(tmp_path / "outside", {"a.py": "secret = 1\n"})
    root = made(
        tmp_path / "work",
        {"src/a.py": "a = 1\n", ".gitignore": "build/\n", ".localdflashignore": "*.secretly\n", "inside/a.py": ""},
    )
    (root / ".git").mkdir()
    (root / "src/link.py").symlink_to("a.py")
    (root / "src/outside.py").symlink_to(outside / "a.py")
    (root / "src/dangling.py").symlink_to(outside / "new.py")
    (root / "linked").symlink_to("inside")
    (root / "elsewhere").symlink_to(outside)
    os.mkfifo(root / "src/pipe")
    return root


FENCE = '```python path="{}"\nx = 1\n```'
DIFF = "```diff\n--- /dev/null\n+++ {}\n@@ -0,0 +1 @@\n+x = 1\n```"


@pytest.mark.parametrize(
    ("form", "name", "reason"), [*((FENCE, *one) for one in ATTACKS), *((DIFF, *one) for one in ATTACKS[::4])]
)
def test_no_answer_changes_such_a_file(root: Path, form: str, name: str, reason: str) -> None:
    before = contents(root.parent)
    assert reason in problem(root, form.format(name))
    assert contents(root.parent) == before


def test_an_odd_name_is_shown_so_that_it_can_be_seen(root: Path) -> None:
    found = propose('```python path="src/\u202eyp.a"\nx = 1\n```', root)
    assert found[0].path == "src/⟦U+202E⟧yp.a"


def _unreadable(path: Path) -> None:
    path.write_bytes(b"x" * 1_000_001)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_bytes(b"a\0b"), "binary"),
        (lambda path: path.write_bytes("é".encode("latin-1")), "not in UTF-8"),
        (_unreadable, "larger than 1 MB"),
    ],
)
def test_files_that_are_no_small_text(root: Path, make: Callable[[Path], object], reason: str) -> None:
    make(root / "src/a.py")
    assert reason in problem(root, "```python src/a.py\na = 2\n```")


def test_an_answer_that_would_make_one(root: Path) -> None:
    assert "larger than 1 MB" in problem(root, f"```python src/b.py\n{'x = 1000' * 130_000}\n```")
    assert "NUL" in problem(root, "```python src/b.py\nx = '\0'\n```")
    assert "UTF-8 does not have" in problem(root, "```python src/b.py\nx = '\ud800'\n```")


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    assert "cannot be read" in problem(tmp_path / "none", "```python src/b.py\nx = 1\n```")
