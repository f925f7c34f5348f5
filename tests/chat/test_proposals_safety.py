"""Files that no answer may change, and property tests of ambiguous and broken answers."""

import difflib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from localdflash.chat.proposals import propose
from tests.chat.workplace import contents, make_files, problem

ATTACKS = [
    ("/etc/passwd", "not a relative path"),
    ("//host/share/a.py", "not a relative path"),
    ("~/a.py", "not a relative path"),
    ("C:/a.py", "not a relative path"),
    ("src\\a.py", "not a relative path"),
    ("../a.py", "leads out"),
    ("src/../../a.py", "leads out"),
    ("..", "leads out"),
    (".", "not an allowed file name"),
    ("src//a.py", "not an allowed file name"),
    ("src/", "not an allowed file name"),
    ("src/a.py.", "not an allowed file name"),
    ("src/.../a.py", "not an allowed file name"),
    (".git/config", "version control"),
    (".GIT/config", "version control"),
    ("GIT~1/config", "version control"),
    (".hg/hgrc", "version control"),
    (".git\u200c/config", "invisible characters"),
    ("src/\u202eyp.a", "invisible characters"),
    ("src/a\x00.py", "invisible characters"),
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
    ("src/a.py/b.py", "not a folder"),
    ("src", "not a plain file"),
    ("src/pipe", "not a plain file"),
    ("x" * 300 + ".py", "too long"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    outside = make_files(tmp_path / "outside", {"a.py": "secret = 1\n"})
    root = make_files(
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
def test_dangerous_file_names_are_refused(root: Path, form: str, name: str, reason: str) -> None:
    before = contents(root.parent)
    assert reason in problem(root, form.format(name))
    assert contents(root.parent) == before


def test_invisible_characters_in_a_name_are_shown(root: Path) -> None:
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
def test_binary_and_large_files_are_refused(root: Path, make: Callable[[Path], object], reason: str) -> None:
    make(root / "src/a.py")
    assert reason in problem(root, "```python src/a.py\na = 2\n```")


def test_answer_that_makes_an_invalid_file_is_refused(root: Path) -> None:
    assert "larger than 1 MB" in problem(root, f"```python src/b.py\n{'x = 1000' * 130_000}\n```")
    assert "NUL" in problem(root, "```python src/b.py\nx = '\0'\n```")
    assert "which UTF-8 cannot encode" in problem(root, "```python src/b.py\nx = '\ud800'\n```")


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    assert "cannot be read" in problem(tmp_path / "none", "```python src/b.py\nx = 1\n```")


LINE = st.one_of(
    st.sampled_from(
        ["", "a", "b", "    x = 1", "}", "-- c", "++ d", "@@", "```", "\\ e", "\t", "---", "=======", "# ..."]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=12),
)
LINES = st.lists(LINE, max_size=25)
QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PATCH = shutil.which("patch")


@st.composite
def edits(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Draw lines, and an edited version of them."""
    old = draw(LINES)
    new = list(old)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(new)))
        stop = draw(st.integers(start, min(start + 3, len(new))))
        new[start:stop] = draw(st.lists(LINE, max_size=3))
    assume(old and new and old != new)
    return old, new


def _bytes(lines: list[str], end: str) -> bytes:
    return "".join(line + end for line in lines).encode()


def _diff(old: list[str], new: list[str]) -> str:
    return "\n".join(difflib.unified_diff(old, new, "a/a.txt", "b/a.txt", lineterm=""))


@QUICK
@given(edits(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["```diff\n{}\n```\n", "So:\n\n{}\n\nDone.\n", "{}"]))
def test_generated_diff_produces_the_new_text(
    tmp_path: Path, edit: tuple[list[str], list[str]], end: str, form: str
) -> None:
    old, new = edit
    root = make_files(tmp_path, {"a.txt": _bytes(old, end)})
    found = propose(form.format(_diff(old, new)), root)
    assert [(one.path, one.problem) for one in found] == [("a.txt", "")]
    assert found[0].after == _bytes(new, end)


@pytest.mark.skipif(PATCH is None, reason="no patch here")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits(), st.lists(st.sampled_from(["above 1", "above 2"]), max_size=3))
def test_moved_diff_matches_patch_or_is_refused(
    tmp_path: Path, edit: tuple[list[str], list[str]], above: list[str]
) -> None:
    old, new = edit
    root = make_files(tmp_path, {"a.txt": _bytes([*above, *old], "\n")})
    found = propose(f"```diff\n{_diff(old, new)}\n```\n", root)
    if found and not found[0].problem:
        (tmp_path / "p").write_text(_diff(old, new) + "\n")
        command = [str(PATCH), "--binary", "-s", "-F0", "-o", "out", "a.txt", "p"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert ran.returncode == 0 or above  # patch refuses moved hunks of the first line
        assert ran.returncode or found[0].after == (tmp_path / "out").read_bytes()


@QUICK
@given(edits(), st.booleans())
def test_generated_fence_produces_the_new_text(tmp_path: Path, edit: tuple[list[str], list[str]], ended: bool) -> None:
    old, new = edit
    text = "\n".join(old) + "\n" * ended
    root = make_files(tmp_path, {"a.txt": text})
    code = "\n".join([*new, "```` end"])
    found = propose(f"`````txt path=a.txt\n{code}\n`````\n", root)
    assert len(found) == 1
    if not found[0].problem:
        assert found[0].after == (code + "\n" * (not text or text.endswith("\n"))).encode()


PIECES = [
    "```",
    "```diff",
    "```python",
    "~~~",
    "--- a/a.txt",
    "+++ b/a.txt",
    "+++ /dev/null",
    "diff --git a/a.txt b/a.txt",
    "@@ -1 +1 @@",
    "@@ -1,9 +1,9 @@",
    "@@",
    "-a",
    "+b",
    " a",
    "\\ No newline",
    "<<<<<<< SEARCH",
    "=======",
    ">>>>>>> REPLACE",
    "a.txt",
    "`b.py`:",
    "# b.py",
    "def f():",
    "    pass",
    "class F:",
    "</think>",
    "",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*PIECES, "\ud800"]), max_size=30), st.sampled_from([(), ("a.txt",), ("b.py",)]))
def test_broken_blocks_are_applied_or_reported(tmp_path: Path, pieces: list[str], attached: tuple[str, ...]) -> None:
    root = make_files(tmp_path, {"a.txt": "a\n", "b.py": "def f():\n    pass\n"})
    for one in propose("\n".join(pieces), root, attached):
        assert "\n" not in one.problem
        assert bool(one.problem) != (one.before != one.after)
        if not one.problem:
            assert one.hunks or not (one.before or one.after)
