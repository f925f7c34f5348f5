"""Edits against a plain model: applied in order to the old document, they give the new one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.code.context import edits as module
from localdflash.code.context.edits import EditHistory, RecentEdit

LINES = st.lists(st.sampled_from("abcd"), max_size=4)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["a.py", "b.py"]), st.integers(0, 60), st.integers(0, 5), LINES, st.floats(0, 3)),
    max_size=module.MAX_EDITS,
)


def applied(document: list[str], edit: RecentEdit) -> list[str]:
    result = list(document)
    for hunk in reversed(edit.hunks):
        assert tuple(result[hunk.line : hunk.line + len(hunk.old)]) == hunk.old
        result[hunk.line : hunk.line + len(hunk.old)] = hunk.new
    return result


@given(CHANGES)
@settings(max_examples=100, deadline=None)
def test_edits_lead_from_the_old_document_to_the_new(changes: list[tuple[str, int, int, list[str], float]]) -> None:
    history, now = EditHistory(), 0.0
    old = {name: [f"{name}{number}" for number in range(40)] for name in ("a.py", "b.py")}
    new = {name: list(lines) for name, lines in old.items()}
    for name, at, count, lines, pause in changes:
        line = min(at, len(new[name]))
        now += pause
        history.changed(name, name, line, new[name][line : line + count], lines, now)
        new[name][line : line + count] = lines
    by_hunk = {name: list(lines) for name, lines in old.items()}
    for edit in history.edits():
        by_hunk[edit.name] = applied(by_hunk[edit.name], edit)
        assert all(hunk.old != hunk.new for hunk in edit.hunks)
        apart = zip(edit.hunks, edit.hunks[1:], strict=False)
        assert all(first.line + len(first.old) < second.line for first, second in apart)
    assert by_hunk == new


def texts(history: EditHistory) -> list[str]:
    return [part.text for part in history.diffs(100)]


def test_the_edit_under_way_is_left_out() -> None:
    history = EditHistory()
    history.changed("b.py", "b.py", 3, ["x"], ["y"], 0.0)
    history.changed("a.py", "a.py", 4, [""], ["import os"], 1.0)
    for typing, names in {("a.py", 4): ["b.py"], ("a.py", 40): ["b.py", "a.py"], ("b.py", 3): ["b.py", "a.py"]}.items():
        assert [part.name for part in history.diffs(9, typing)] == names


def test_documents_of_one_name_have_edits_of_their_own() -> None:
    history = EditHistory()
    history.changed("cell 0", "a.ipynb", 0, ["a = 1"], ["a = 2"], 0.0)
    history.changed("cell 1", "a.ipynb", 0, ["import os"], ["import sys"], 0.1)
    assert texts(history) == ["@@ -1,1 +1,1 @@\n-a = 1\n+a = 2", "@@ -1,1 +1,1 @@\n-import os\n+import sys"]
    history.forget("cell 0")
    assert len(texts(history)) == 1


def test_secret_and_forgotten_files_have_no_edits() -> None:
    history = EditHistory()
    for name in (".env", "config/secrets.yaml", "a\x1b[2J\n.py"):
        history.changed(name, name, 0, ["CANARY"], ["x"], 0.0)
    (part,) = history.diffs(9)
    assert part.name.isprintable()
    history.forget("a\x1b[2J\n.py")
    assert (history.diffs(9), history.replaced_texts(9)) == ([], [])
