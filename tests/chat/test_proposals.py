"""Proposals from diffs, search/replace blocks and fences, as models write them; ambiguous ones are refused."""

from pathlib import Path

import pytest

from localdflash.chat.proposals import propose
from tests.chat.workplace import BOX, after, make_files, problem

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
    return make_files(
        tmp_path / "work",
        {"src/box.py": BOX, "twice.py": "a\nb\nc\na\nb\nc\n", "notes.md": "# Notes\n\none\ntwo\nthree\n"},
    )


@pytest.mark.parametrize(
    "answer",
    [
        f"Sure:\n\n```diff\n{HEAD}{HUNK}```\nDone.",
        f"Take this:\n{HEAD}{HUNK}\nThat is all.",
        f"```diff\ndiff --git a/src/box.py b/src/box.py\nindex 1234567..89abcde 100644\n{HEAD}{HUNK}```",
        f"`src/box.py`:\n```diff\n{HUNK}```",
        "\n".join(["1. So:", *(f"   {line}" for line in f"```diff\n{HEAD}{HUNK}```".split("\n"))]),
        f"<think>\n```diff\n{HEAD}@@ -1 +1 @@\n-x\n+y\n```\n</think>\n```diff\n{HEAD}{HUNK}```",
        f"Maybe so:\n```diff\n{HEAD}@@ -1 +1 @@\n-x\n+y\n```\n</think>\n```diff\n{HEAD}{HUNK}```",
        f"Maybe so:\n```python\nx = 1\n\nNo, better so.\n</think>\n```diff\n{HEAD}{HUNK}```",
        f"```diff\n{HEAD}{HUNK}```\nThe template ends like this:\n```\n<think>\n</think>\n```\n",
        f"```diff\n{HEAD}{HUNK}```".replace("\n", "\r\n"),
        f"```diff\n{HEAD}{HUNK.replace('-6,3 +6,3', '-6,9 +6,7')}```",
        f"```diff\n{HEAD}{HUNK.replace('-6,3 +6,3', '-19,3 +19,3')}```",
        f"```diff\n{HEAD}{HUNK.replace('@@ -6,3 +6,3 @@', '@@')}```",
    ],
)
def test_variants_of_a_diff_are_applied(root: Path, answer: str) -> None:
    assert after(root, answer) == CHANGED


def test_diff_of_several_files(root: Path) -> None:
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


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("@@ -6,3 +6,3 @@\n # The area.\n def area(w, g):\n-    return w * h\n+    return 0\n", "fits nowhere"),
        ("@@ -2,2 +2,2 @@\n-        self.x = w\n+        self.w = 0\n", "no line 'self.x = w'"),
        ("@@ -1,0 +2,1 @@\n+x = 1\n", "has no context lines"),
        ("@@ -7 +7 @@\nreturn 1\n", "line without a sign: 'return 1'"),
        ("@@ -6,3 +6,3 @@\n", "hunk without lines"),
        (
            "@@ -6,3 +6,3 @@\n # The area.\n-def area(w, h):\n+def a(w, h):\n     return w * h\n"
            "@@ -7,2 +7,2 @@\n def area(w, h):\n-    return w * h\n+    return 1\n",
            "two hunks change line 7",
        ),
    ],
)
def test_hunk_that_does_not_fit_is_refused(root: Path, body: str, reason: str) -> None:
    assert reason in problem(root, f"```diff\n{HEAD}{body}```")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("--- a/twice.py\n+++ b/twice.py\n@@ -2,3 +2,3 @@\n a\n-b\n+B\n c\n", "more than one place: lines 1 and 4"),
        ("--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n", "does not exist"),
        ("--- /dev/null\n+++ b/twice.py\n@@ -0,0 +1 @@\n+b\n", "exists already"),
        ("--- a/twice.py\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-a\n-b\n-c\n", "does not remove all lines"),
        ("--- a/twice.py\n+++ b/other.py\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n", "would be renamed"),
        (
            "diff --git a/twice.py b/other.py\nsimilarity index 100%\nrename from twice.py\nrename to other.py\n",
            "does more than change lines",
        ),
        ("@@ -1,2 +1,2 @@\n a\n-b\n+B\n", "names no file"),
    ],
)
def test_invalid_diff_is_refused(root: Path, answer: str, reason: str) -> None:
    assert reason in problem(root, f"```diff\n{answer}```")


BLOCK = "<<<<<<< SEARCH\n    return w * h\n=======\n    return abs(w * h)\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    "answer",
    [
        f"src/box.py\n```python\n{BLOCK}```\n",
        f"```python\nsrc/box.py\n{BLOCK}```\n",
        f"```\n# src/box.py\n{BLOCK}```\n",
        f"src/box.py\n{BLOCK}",
        f"src/box.py\n```python\n{BLOCK}```\n".replace("<<<<<<<", "<<<<<<").replace(">>>>>>>", ">>>>>>"),
    ],
)
def test_search_replace_block_names_its_file(root: Path, answer: str) -> None:
    assert after(root, answer) == CHANGED


def test_search_replace_in_new_emptied_and_missing_files(root: Path) -> None:
    answer = "new.py\n```python\n<<<<<<< SEARCH\n=======\nx = 1\n>>>>>>> REPLACE\n```"
    assert after(root, answer, "new.py") == "x = 1\n"
    answer = "twice.py\n<<<<<<< SEARCH\na\nb\nc\na\nb\nc\n=======\n>>>>>>> REPLACE\n"
    assert after(root, answer, "twice.py") == ""
    assert "does not exist" in problem(root, f"none.py\n{BLOCK}")


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n", "more than one place: lines 1 and 4"),
        ("<<<<<<< SEARCH\n=======\nb\n>>>>>>> REPLACE\n", "has no context lines"),
        ("<<<<<<< SEARCH\nb\n=======\nc\n", "cut short"),
        ("<<<<<<< SEARCH\nb\n>>>>>>> REPLACE\n", "has 0 separators"),
        ("<<<<<<< SEARCH\nb\n=======\nc\n=======\n>>>>>>> REPLACE\n", "has 2 separators"),
    ],
)
def test_ambiguous_search_replace_is_refused(root: Path, block: str, reason: str) -> None:
    assert reason in problem(root, f"twice.py\n```python\n{block}```")


@pytest.mark.parametrize(
    ("end", "text", "reason"),
    [
        (">>>>>>>\n", b"# Notes\n\none\n2\nthree\n", ""),
        ("", None, "is cut short: it has no line >>>>>>> REPLACE"),
    ],
)
def test_search_replace_block_ends_before_the_next_block(root: Path, end: str, text: bytes | None, reason: str) -> None:
    first = f"notes.md\n```\n<<<<<<< SEARCH\ntwo\n=======\n2\n{end}```\n"
    answer = f"{first}Then the other file:\n\nsrc/box.py\n```python\n{BLOCK}```\n"
    found = {one.path: one for one in propose(answer, root)}
    assert (found["notes.md"].after, found["notes.md"].problem) == (text, reason)
    assert found["src/box.py"].after == CHANGED.encode()


def test_line_of_angle_brackets_may_be_replaced(root: Path) -> None:
    block = "<<<<<<< SEARCH\ntwo\n=======\n>>>>>\n>>>>>>> REPLACE\n"
    assert after(root, f"notes.md\n{block}", "notes.md") == "# Notes\n\none\n>>>>>\nthree\n"


def test_heading_underline_is_no_separator(tmp_path: Path) -> None:
    root = make_files(tmp_path / "work", {"a.md": "Title\n=====\nold\n"})
    block = "<<<<<<< SEARCH\nTitle\n=====\nold\n=======\nTitle\n=====\nnew\n>>>>>>> REPLACE\n"
    assert after(root, f"a.md\n{block}", "a.md") == "Title\n=====\nnew\n"


AREA = 'def area(w, h):\n    """Never negative."""\n    return abs(w * h)\n'
REPLACED = BOX.replace("def area(w, h):\n    return w * h\n", AREA)


NAMINGS = [
    "```python path=src/box.py\n{}```",
    '```python title="src/box.py"\n{}```',
    "```src/box.py\n{}```",
    "```python:src/box.py\n{}```",
    "```python\n# src/box.py\n{}```",
    "src/box.py:\n```python\n{}```",
    "`src/box.py`\n\n```python\n{}```",
    "### 1. `src/box.py`\n```python\n{}```",
    "File: src/box.py (updated)\n```python\n{}```",
    "Change `src/box.py` like this:\n```python\n{}```",
    "src/box.py\n```\n{}```",
]


@pytest.mark.parametrize("naming", NAMINGS)
def test_fence_names_its_file(root: Path, naming: str) -> None:
    assert after(root, naming.format(AREA)) == REPLACED


@pytest.mark.parametrize(
    "answer",
    [
        "```python\nprint(1)\n```",
        "Run `src/box.py`:\n```console\n$ python src/box.py\n2\n```",
        "It prints:\n```\n2\n```",
        "```12:20:src/box.py\ndef area(w, h):\n```",
        "I looked at `src/box.py` and `notes.md`:\n```python\nprint(1)\n```",
        "```python\n# os.path\nx = 1\n```",
        f"<think>\nMaybe so:\n```diff\n{HEAD}{HUNK}```\n",
    ],
)
def test_example_code_is_not_a_proposal(root: Path, answer: str) -> None:
    assert propose(answer, root) == []


def test_unnamed_code_changes_the_attached_file(root: Path) -> None:
    answer = f"```python\n{AREA}```\nRun it:\n```sh\npython src/box.py\n```\nIt prints:\n```\n2\n```\n"
    assert after(root, answer, attached=("src/box.py",)) == REPLACED
    assert propose(answer, root, ["src/box.py", "notes.md"]) == []
    assert after(root, f"```\n{AREA}```", attached=("src/box.py", "src/box.py")) == REPLACED


def test_fences_replace_single_definitions(root: Path) -> None:
    size = "    @property\n    def size(self):\n        return 0\n"
    grow = "def grow(self):\n    self.w += 2\n    self.h += 2\n"
    found = after(
        root, f"```python\n{AREA}```\nand\n```python\n{grow}```\nand\n```python\n{size}```", attached=("src/box.py",)
    )
    expected = REPLACED.replace("return area(self.w, self.h)", "return 0")
    assert found == expected.replace("self.w += 1\n", "self.w += 2\n        self.h += 2\n")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import math\n\n# ... existing code ...\n", "omits parts: '# ... existing code ...'"),
        ("def volume(a):\n    return a\n", "has no 'volume'"),
        ("def area(w, h):\n    return (w\n", "has a syntax error"),
        ("print(area(1, 2))\n", "not the whole file"),
        (f"import cmath\n\n{AREA}", "the position of this line is unknown: 'import cmath'"),
        ("class Box:\n    def grow(self):\n        self.w += 2\n", "omits '"),
        ("def size(self):\n    return 0\n", "omits '@property'"),
        ("def grow(w):\n    return w\n", "defines 'grow' as a function, which is a method in the file"),
        (f"{AREA}\n\n{AREA}", "defines 'area' twice"),
    ],
)
def test_partial_code_without_a_position_is_refused(root: Path, code: str, reason: str) -> None:
    assert reason in problem(root, f"```python src/box.py\n{code}```")


RUST = """\
use std::fmt;

#[derive(Debug)]
struct A {
    x: u8,
}

impl A {
    fn go(&self) -> u8 {
        1
    }
}
"""


def test_rust_definition_is_replaced(tmp_path: Path) -> None:
    root = make_files(tmp_path / "work", {"a.rs": RUST})
    assert after(root, "```a.rs\nfn go(&self) -> u8 {\n    2\n}\n```", "a.rs") == RUST.replace("        1", "        2")


REPLACING_DIFF = "```diff\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2.5\n three\n```"
REPLACING_BLOCK = "a.txt\n<<<<<<< SEARCH\ntwo\n=======\n2\n2.5\n>>>>>>> REPLACE\n"
WHOLE_FILE = "a.txt\n```\none\n2\n2.5\nthree\n```"
ANSWERS = [REPLACING_DIFF, REPLACING_BLOCK, WHOLE_FILE, REPLACING_DIFF.replace("\n", "\r\n")]


def _after(root: Path, answer: str) -> bytes | None:
    found = propose(answer, root)
    assert [one.problem for one in found] == [""]
    return found[0].after


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\ntwo\nthree\n", b"one\n2\n2.5\nthree\n"),
        (b"one\r\ntwo\r\nthree\r\n", b"one\r\n2\r\n2.5\r\nthree\r\n"),
        (b"\xef\xbb\xbfone\r\ntwo\r\nthree", b"\xef\xbb\xbfone\r\n2\r\n2.5\r\nthree"),
        (b"one\r\ntwo\nthree\r\n", b"one\r\n2\r\n2.5\r\nthree\r\n"),
    ],
)
def test_byte_order_mark_and_line_ends_are_kept(tmp_path: Path, answer: str, before: bytes, after: bytes) -> None:
    root = make_files(tmp_path / "work", {"a.txt": before})
    assert _after(root, answer) == after


@pytest.mark.parametrize(
    ("before", "hunk", "after"),
    [
        (b"a\nb", " a\n-b\n\\ No newline at end of file\n+b\n", b"a\nb\n"),
        (b"a\nb\n", " a\n-b\n+b\n\\ No newline at end of file\n", b"a\nb"),
        (b"a\nb", " a\n-b\n+c\n", b"a\nc"),
        (b"a\nb", " a\n b\n+c\n", b"a\nb\nc"),
    ],
)
def test_final_newline_follows_the_diff(tmp_path: Path, before: bytes, hunk: str, after: bytes) -> None:
    root = make_files(tmp_path / "work", {"a.txt": before})
    counts = [sum(line[:1] in signs for line in hunk.split("\n") if line) for signs in (" -", " +")]
    head = f"--- a/a.txt\n+++ b/a.txt\n@@ -1,{counts[0]} +1,{counts[1]} @@\n"
    assert _after(root, f"```diff\n{head}{hunk}```") == after
