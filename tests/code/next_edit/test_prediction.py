# ruff: noqa: F811
"""Next edits by a model: regions, prompts, and the changes of answers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.code.context.context import ContextPiece
from localdflash.code.next_edit.line_changes import diff_of, edit_between
from localdflash.code.next_edit.prediction import CONTEXT_CHARS, MAX_PROMPT_CHARS, EditPrompt, plan_prediction
from localdflash.engine.generate import Request
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.text.edit_formats import FORMATS, EditDiff, EditRegion
from localdflash.text.tokenizer import Tokenizer
from tests.text.conftest import make_vocabulary, oracle  # noqa: F401

LINES = st.lists(st.sampled_from(["", "a", "b", "  ab", "é", "😋b"]), min_size=1, max_size=12)
SWEEP, ZETA2 = FORMATS["sweep"], FORMATS["zeta-2"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(local_files(load_registry().resolve("embedded")).target)


def plan(tokenizer: Tokenizer, before: str, after: str, *pieces: ContextPiece, name: str = "sweep") -> EditPrompt:
    prompt = plan_prediction(FORMATS[name], tokenizer, "a.py", before, after, pieces)
    assert prompt
    return prompt


@given(LINES, LINES)
def test_changes_make_the_updated_text(old: list[str], new: list[str]) -> None:
    text = "\n".join(old)
    prompt = EditPrompt(ZETA2, EditRegion("a.py", "", text, "", 0, text), Request([], 0))
    changes = prompt.changes("\n".join(new))
    if changes is None:
        assert not "".join(new).strip()
        return
    lines = old
    for change in reversed(changes):
        assert 0 <= change.start <= change.end <= len(old)
        lines = [*lines[: change.start], *change.lines, *lines[change.end :]]
    updated = "\n".join(new).rstrip("\n") + text[len(text.rstrip("\n")) :]
    assert "\n".join(lines) == updated


@given(LINES, LINES)
def test_an_edit_makes_one_text_of_another(old: list[str], new: list[str]) -> None:
    text, wanted = "\n".join(old), "\n".join(new)
    if old == new:
        return
    start, end, inserted = edit_between(text, wanted)
    before = "\n".join([*old[: start[0]], old[start[0]][: start[1]]])
    after = "\n".join([old[end[0]][end[1] :], *old[end[0] + 1 :]])
    assert (f"{before}{inserted}{after}", start <= end) == (wanted, True)


@pytest.mark.parametrize(
    ("new", "edit"),
    [
        ("def f\n  return w\n  y", ((1, 10), (1, 14), "")),
        ("def f\n  x = 1\n\n  return width\n  y", ((0, 5), (0, 5), "\n  x = 1\n")),
        ("import a\ndef f\n  return width\n  y", ((0, 0), (0, 0), "import a\n")),
        ("  return width\n  y", ((0, 0), (1, 0), "")),
        ("def f\n  y", ((0, 5), (1, 14), "")),
        ("def f", ((0, 5), (2, 3), "")),
    ],
)
def test_where_an_edit_is(new: str, edit: object) -> None:
    assert edit_between("def f\n  return width\n  y", new) == edit


@given(LINES, LINES)
def test_a_diff_has_both_sides(old: list[str], new: list[str]) -> None:
    edit = EditDiff("a.py", diff_of("\n".join(old), "\n".join(new)))
    for side, lines in ((edit.side("-"), old), (edit.side("+"), new)):
        assert f"\n{side}" in "\n" + "".join(f"{line}\n" for line in lines)


def test_a_diff_has_three_lines_around_the_edit() -> None:
    text = "\n".join("abcdefghij")
    assert diff_of(text, text.replace("f", "F\nG")) == "@@ -3,7 +3,8 @@\n c\n d\n e\n-f\n+F\n+G\n g\n h\n i\n"


def test_the_region_is_around_the_cursor(tokenizer: Tokenizer) -> None:
    text = "\n".join(f"line {number}" for number in range(400))
    at = text.index("line 100") + 4
    sweep = plan(tokenizer, text[:at], text[at:])
    assert sweep.region.text.split("\n") == [f"line {number}" for number in range(90, 111)]
    assert (sweep.region.first_line, sweep.region.text[: sweep.region.cursor].count("\n")) == (90, 10)
    zeta = plan(tokenizer, text[:at], text[at:], name="zeta-2")
    assert ZETA2.max_chars - 20 < len(zeta.region.text) <= ZETA2.max_chars + len("line 100")
    assert zeta.region.before + zeta.region.text + zeta.region.after in f"{text}\n"
    assert zeta.region.text[zeta.region.cursor :].startswith(" 100\n")
    assert 300 < len(zeta.region.before + zeta.region.after) <= CONTEXT_CHARS


def test_the_original_is_the_region_before_the_latest_edit(tokenizer: Tokenizer) -> None:
    old = "a\n\nx = 1\nend\n"
    for new, cursor in (
        ("a\n\nx = 2\nend\n", 8),
        ("a\nend\n", 2),
        ("a\n\nx = 1\nend\nmore", 17),
        ("x\na\n\nx = 1\nend\n", 1),
    ):
        prompt = plan(tokenizer, new[:cursor], new[cursor:], ContextPiece("edit", "a.py", diff_of(old, new)))
        assert prompt.region.original == old
    for name, diff in (
        ("a.py", "@@ -1,1 +1,1 @@\n-a\n+no such line\n"),
        ("b.py", diff_of(old, "b")),
        ("a.py", "no diff"),
    ):
        assert plan(tokenizer, old, "", ContextPiece("edit", name, diff)).region.original == old


def test_what_is_shown_besides(tokenizer: Tokenizer) -> None:
    edits = [ContextPiece("edit", "b.py", f"@@ -1,1 +1,1 @@\n-{number}\n+{number}\n") for number in range(8)]
    large = ContextPiece("open", "large.py", "x" * MAX_PROMPT_CHARS, 1.0)
    small = ContextPiece("definition", "small.py", "def f():", 0.5)
    ids = plan(tokenizer, "x", "", small, large, *edits).request.ids
    text = tokenizer.spell(list(ids)).decode()
    assert "small.py\ndef f():\n" in text
    assert "large.py" not in text
    assert [number for number in range(8) if f"original:\n{number}\n" in text] == [2, 3, 4, 5, 6, 7]


def test_code_that_spells_a_marker_and_long_lines_are_refused(tokenizer: Tokenizer) -> None:
    text = "x = '<|user_cursor|>'"
    assert plan_prediction(ZETA2, tokenizer, "a.py", text, "", []) is None
    assert plan_prediction(SWEEP, tokenizer, "a.py", text, "", [])
    assert plan_prediction(SWEEP, tokenizer, "a.py", "x" * 5_001, "", []) is None


def test_markers_are_tokens_and_code_is_not(make_vocabulary: Callable[..., Path]) -> None:
    vocabulary = make_vocabulary(dict.fromkeys(["<|endoftext|>", "<s>", "<|file_sep|>"], 3), bos="<s>")
    special = Tokenizer.load(vocabulary)
    ids = plan(special, "x = '<|file_sep|>'", "").request.ids
    assert ids.count(special.special("<|file_sep|>")) == 3
    assert ids[0] == special.special("<s>")
