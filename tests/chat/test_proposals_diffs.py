"""Unified diffs in an answer: read however models write them, placed only where they fit."""

from pathlib import Path

import pytest

from localdflash.chat.proposals import propose
from tests.chat.workplace import BOX, after, made, problem

CHANGED = BOX.replace("return w * h", "return abs(w * h)")
HUNK = """\
@@ -6,3 +6,3 @@
 # The area.
 def area(w, h):
-    return w * h
+    return abs(w * h)
"""
HEAD = "--- a/src/box.py\n+++ b/src/box.py\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "work", {"src/box.py": BOX, "twice.py": "a\nb\nc\na\nb\nc\n", "empty.py": ""})


@pytest.mark.parametrize(
    "answer",
    [
        f"Sure:\n\n```diff\n{HEAD}{HUNK}```\nDone.",
        f"Take this:\n{HEAD}{HUNK}\nThat is all.",
        f"```diff\ndiff --git a/src/box.py b/src/box.py\nindex 1234567..89abcde 100644\n{HEAD}{HUNK}```",
        f"`src/box.py`:\n```diff\n{HUNK}```",
        "\n".join(["1. So:", *(f"   {line}" for line in f"```diff\n{HEAD}{HUNK}```".split("\n"))]),
        f"<think>\n```diff\n{HEAD}@@ -1 +1 @@\n-x\n+y\n```\n</think>\n```diff\n{HEAD}{HUNK}```",
        f"```diff\n{HEAD}{HUNK}```".replace("\n", "\r\n"),
        f"```diff\n{HEAD}{HUNK.replace('-6,3 +6,3', '-6,9 +6,7')}```",
        f"```diff\n{HEAD}{HUNK.replace('-6,3 +6,3', '-19,3 +19,3')}```",
        f"```diff\n{HEAD}{HUNK.replace('@@ -6,3 +6,3 @@', '@@')}```",
    ],
)
def test_a_diff_is_read_however_it_is_written(root: Path, answer: str) -> None:
    assert after(root, answer) == CHANGED


def test_several_files_and_hunks(root: Path) -> None:
    second = "@@ -19,2 +19,3 @@\n     def grow(self):\n         self.w += 1\n+        self.h += 1\n"
    new = "--- /dev/null\n+++ b/src/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    gone = "--- a/twice.py\n+++ /dev/null\n@@ -1,6 +0,0 @@\n-a\n-b\n-c\n-a\n-b\n-c\n"
    found = propose(f"```diff\n{HEAD}{HUNK}{second}{new}{gone}```", root)
    assert [(one.path, one.kind, one.problem) for one in found] == [
        ("src/box.py", "change", ""),
        ("src/new.py", "new", ""),
        ("twice.py", "delete", ""),
    ]
    assert found[0].after == CHANGED.replace("self.w += 1\n", "self.w += 1\n        self.h += 1\n").encode()
    assert (found[1].before, found[1].after) == (None, b"one\ntwo\n")
    assert found[2].after is None
    assert [hunk.old for hunk in found[0].hunks] == [5, 19]


def test_the_place_that_it_says_comes_first(root: Path) -> None:
    hunk = "@@ -4,3 +4,3 @@\n a\n-b\n+B\n c\n"
    answer = f"```diff\n--- a/twice.py\n+++ b/twice.py\n{hunk}```"
    assert after(root, answer, "twice.py") == "a\nb\nc\na\nB\nc\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("@@ -6,3 +6,3 @@\n # The area.\n def area(w, g):\n-    return w * h\n+    return 0\n", "fits nowhere"),
        ("@@ -2,2 +2,2 @@\n-        self.x = w\n+        self.w = 0\n", "no line 'self.x = w'"),
        ("@@ -1,0 +2,1 @@\n+x = 1\n", "does not say next to which lines"),
        ("@@ -7 +7 @@\nreturn 1\n", "line without a sign: 'return 1'"),
        ("@@ -6,3 +6,3 @@\n", "hunk without lines"),
        (
            "@@ -6,3 +6,3 @@\n # The area.\n-def area(w, h):\n+def a(w, h):\n     return w * h\n"
            "@@ -7,2 +7,2 @@\n def area(w, h):\n-    return w * h\n+    return 1\n",
            "two hunks change line 7",
        ),
    ],
)
def test_what_does_not_fit_is_not_applied(root: Path, body: str, reason: str) -> None:
    assert reason in problem(root, f"```diff\n{HEAD}{body}```")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("--- a/twice.py\n+++ b/twice.py\n@@ -2,3 +2,3 @@\n a\n-b\n+B\n c\n", "more than one place: lines 1 and 4"),
        ("--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n", "is not there to be changed"),
        ("--- /dev/null\n+++ b/twice.py\n@@ -0,0 +1 @@\n+b\n", "is there already"),
        ("--- a/twice.py\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-a\n-b\n-c\n", "does not have all of its lines"),
        ("--- a/twice.py\n+++ b/other.py\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n", "would be renamed"),
        (
            "diff --git a/twice.py b/other.py\nsimilarity index 100%\nrename from twice.py\nrename to other.py\n",
            "does more than change lines",
        ),
        ("@@ -1,2 +1,2 @@\n a\n-b\n+B\n", "names no file"),
    ],
)
def test_why_a_diff_is_not_applied(root: Path, answer: str, reason: str) -> None:
    assert reason in problem(root, f"```diff\n{answer}```")


def test_one_wrong_hunk_refuses_the_whole_file_but_not_the_others(root: Path) -> None:
    wrong = "@@ -12,2 +12,2 @@\n class Box:\n-    nothing of this\n+    at all\n"
    new = "--- /dev/null\n+++ b/src/new.py\n@@ -0,0 +1 @@\n+one\n"
    found = propose(f"```diff\n{HEAD}{HUNK}{wrong}{new}```", root)
    assert [(one.path, bool(one.problem)) for one in found] == [("src/new.py", False), ("src/box.py", True)]
    assert found[1].problem.startswith("hunk 2 of 2 fits nowhere")


def test_prose_and_thoughts_are_no_diff(root: Path) -> None:
    assert propose(f"<think>\n```diff\n{HEAD}{HUNK}```\n", root) == []
    assert propose("--- a\n\n+++ b\n- one\n+ two\n@@ what\n---\n+++\n", root) == []
