"""Any edit of any file, as a diff, as a fence, as search/replace blocks, leads to exactly the new text."""

import difflib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from localdflash.chat.proposals import propose
from tests.chat.workplace import made

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
    """Lines, and the same with some replaced, added and taken away."""
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
def test_a_diff_leads_to_the_new_text(tmp_path: Path, edit: tuple[list[str], list[str]], end: str, form: str) -> None:
    old, new = edit
    root = made(tmp_path, {"a.txt": _bytes(old, end)})
    found = propose(form.format(_diff(old, new)), root)
    assert [(one.path, one.problem) for one in found] == [("a.txt", "")]
    assert found[0].after == _bytes(new, end)


@pytest.mark.skipif(PATCH is None, reason="no patch here")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits(), st.lists(st.sampled_from(["above 1", "above 2"]), max_size=3))
def test_a_moved_diff_does_what_patch_does_or_is_refused(
    tmp_path: Path, edit: tuple[list[str], list[str]], above: list[str]
) -> None:
    old, new = edit
    root = made(tmp_path, {"a.txt": _bytes([*above, *old], "\n")})
    found = propose(f"```diff\n{_diff(old, new)}\n```\n", root)
    if found and not found[0].problem:
        (tmp_path / "p").write_text(_diff(old, new) + "\n")
        command = [str(PATCH), "--binary", "-s", "-F0", "-o", "out", "a.txt", "p"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert ran.returncode == 0 or above  # moved hunks at the start of a file it wants there
        assert ran.returncode or found[0].after == (tmp_path / "out").read_bytes()


@QUICK
@given(edits(), st.booleans())
def test_a_fence_leads_to_the_new_text(tmp_path: Path, edit: tuple[list[str], list[str]], ended: bool) -> None:
    old, new = edit
    text = "\n".join(old) + "\n" * ended
    root = made(tmp_path, {"a.txt": text})
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
def test_broken_blocks_are_told_or_left_alone(tmp_path: Path, pieces: list[str], attached: tuple[str, ...]) -> None:
    root = made(tmp_path, {"a.txt": "a\n", "b.py": "def f():\n    pass\n"})
    for one in propose("\n".join(pieces), root, attached):
        assert "\n" not in one.problem
        assert bool(one.problem) != (one.before != one.after)
        if not one.problem:
            assert one.hunks or not (one.before or one.after)
