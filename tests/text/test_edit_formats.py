"""Prompts and answers of next-edit models, as they are published (see `edit_formats`)."""

from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.text.edit_formats import (
    FORMATS,
    MAX_BLOCK_LINES,
    SEARCHED_LINES,
    EditDiff,
    EditRegion,
    block_offsets,
    detect_edit_format,
    parse,
    render,
)

REGION = EditRegion(
    "src/a.py", "import b\n\n", "def f(w):\n    return width", "\n\nf(1)", 10, "def f(width):\n    return width"
)
FILES = [("src/b.py", "B = 1"), ("src/c.py", "C = 2\n")]
EDITS = [
    EditDiff("src/b.py", "@@ -1,1 +1,1 @@\n-A = 1\n+B = 1\n"),
    EditDiff("src/a.py", "@@ -2,3 +2,3 @@\n \n-def f(width):\n+def f(w):\n     return width"),
]
ZETA2_HEAD = """<[fim-suffix]>

f(1)
<[fim-prefix]><filename>src/b.py
B = 1
<filename>src/c.py
C = 2

<filename>edit_history
--- a/src/b.py
+++ b/src/b.py
@@ -1,1 +1,1 @@
-A = 1
+B = 1
--- a/src/a.py
+++ b/src/a.py
@@ -2,3 +2,3 @@
 
-def f(width):
+def f(w):
     return width

<filename>src/a.py
import b

"""  # noqa: W293
PROMPTS = {
    "sweep": """<|file_sep|>src/b.py
B = 1
<|file_sep|>src/c.py
C = 2
<|file_sep|>src/b.py.diff
original:
A = 1
updated:
B = 1
<|file_sep|>src/a.py.diff
original:

def f(width):
    return width
updated:

def f(w):
    return width
<|file_sep|>original/src/a.py
def f(width):
    return width
<|file_sep|>current/src/a.py
def f(w):
    return width
<|file_sep|>updated/src/a.py
""",
    "zeta-2": ZETA2_HEAD
    + """<<<<<<< CURRENT
def f(w):
<|user_cursor|>    return width
=======
<[fim-middle]>""",
    "zeta-2.1": ZETA2_HEAD
    + """<|marker_1|>def f(w):
<|user_cursor|>    return width<|marker_2|>
<[fim-middle]>""",
}
UPDATED = "def f(w):\n    return w"
ANSWERS = {  # up to `answer_end` or the end token
    "sweep": "def f(w):\n    return w\n",
    "zeta-2": "def f(w):\n    return w<|user_cursor|>\n",
    "zeta-2.1": "<|marker_1|>def f(w):\n    return w<|user_cursor|><|marker_2|>",
}
MALFORMED = {
    "sweep": ["", " \n"],
    "zeta-2": ["", "\n", "a<|user_cursor|>b<|user_cursor|>", "a\n>>>>>>> UPDATED\nb"],
    "zeta-2.1": [
        *("", "def f(w):\n", "<|marker_1|>def f(w):\n", "x<|marker_1|>def<|marker_2|>", "<|marker_1|>def<|marker_2|>x"),
        *("<|marker_2|>def<|marker_1|>", "<|marker_1|>def<|marker_3|>", "<|marker_0|>def<|marker_1|>"),
        *(
            "<|marker_1|>def<|marker_1|>",
            "<|marker_9|><|marker_9|>",
            "<|marker_1|>a<|user_cursor|>b<|user_cursor|><|marker_2|>",
        ),
    ],
}
LINES = st.lists(
    st.sampled_from(["", "    x = 1", "}", "    return", "def f():", "é", "\x0c"]), min_size=1, max_size=40
)
TEXTS = LINES.map("\n".join)


def test_every_format_has_a_golden_prompt() -> None:
    for name, form in FORMATS.items():
        assert "".join(render(form, REGION, FILES, EDITS)) == PROMPTS[name]


def test_what_is_missing_is_left_out() -> None:
    alone = EditRegion("a.py", "", "x\n", "", 2, "x\n")
    prompts = {name: "".join(render(form, alone, [], [])) for name, form in FORMATS.items()}
    assert prompts["sweep"] == "<|file_sep|>original/a.py\nx\n<|file_sep|>current/a.py\nx\n<|file_sep|>updated/a.py\n"
    head = "<[fim-suffix]>\n<[fim-prefix]><filename>a.py\n"
    assert prompts["zeta-2"] == f"{head}<<<<<<< CURRENT\nx\n<|user_cursor|>=======\n<[fim-middle]>"
    assert prompts["zeta-2.1"] == f"{head}<|marker_1|>x\n<|user_cursor|><|marker_2|>\n<[fim-middle]>"


@pytest.mark.parametrize("name", FORMATS)
def test_answers(name: str) -> None:
    assert parse(FORMATS[name], REGION.text, ANSWERS[name]) == UPDATED
    assert (
        parse(FORMATS[name], f"{REGION.text}\n", ANSWERS[name].replace("<|marker_2", "\n<|marker_2")) == f"{UPDATED}\n"
    )
    for answer in MALFORMED[name]:
        assert parse(FORMATS[name], REGION.text, answer) is None, answer
    assert parse(FORMATS["zeta-2.1"], REGION.text, "<|marker_2|><|marker_2|>") == REGION.text


def test_line_feeds_at_the_end_stay() -> None:
    for name in ("sweep", "zeta-2"):
        assert parse(FORMATS[name], "a\nb\n\n", "a\nc") == "a\nc\n\n"
        assert parse(FORMATS[name], "a\nb", "a\nc\n\n\n") == "a\nc"


@given(TEXTS, TEXTS, st.data())
def test_an_answer_rewrites_the_region_only(old: str, new: str, data: st.DataObject) -> None:
    """An encoded answer gives exactly its text, with numbered markers only between them."""
    offsets = block_offsets(old)
    first = data.draw(st.integers(0, len(offsets) - 2))
    last = data.draw(st.integers(first + 1, len(offsets) - 1))
    between = "".join(f"<|marker_{number + 1}|>" for number in range(first + 1, last + 1))
    answer = f"<|marker_{first + 1}|>{new}{between}"
    assert parse(FORMATS["zeta-2.1"], old, answer) == old[: offsets[first]] + new + old[offsets[last] :]
    for name in ("sweep", "zeta-2"):
        expected = new.rstrip("\n") + old[len(old.rstrip("\n")) :] if new.strip() else None
        assert parse(FORMATS[name], old, f"{new}\n") == expected


@given(
    TEXTS, st.lists(st.sampled_from(["<|marker_1|>", "<|marker_2|>", "<|user_cursor|>", ">>>>>>> UPDATED", "a\n", ""]))
)
def test_no_marker_gets_into_the_text(region: str, parts: list[str]) -> None:
    for form in FORMATS.values():
        updated = parse(form, region, "".join(parts))
        assert updated is None or not any(mark in updated for mark in form.reserved)


@given(TEXTS)
def test_blocks_are_whole_lines(text: str) -> None:
    offsets = block_offsets(text)
    assert (offsets[0], offsets[-1], len(offsets) > 1) == (0, len(text), True)
    assert all(text[offset - 1] == "\n" for offset in offsets[1:-1])
    blocks = [text[start:end] for start, end in pairwise(offsets)]
    assert all(block.count("\n") < MAX_BLOCK_LINES + SEARCHED_LINES for block in blocks)


@pytest.mark.parametrize(
    ("names", "file", "expected"),
    [
        ({"general.name": "Zeta 2.1", "general.basename": "zeta"}, "m.gguf", "zeta-2.1"),
        ({"general.name": "Zeta 2"}, "m.gguf", "zeta-2"),
        ({"general.name": "Zeta"}, "m.gguf", None),
        ({}, "zed-industries_zeta-2-Q4_K_L.gguf", "zeta-2"),
        ({}, "zeta-2.1.i1-Q4_K_M.gguf", "zeta-2.1"),
        ({}, "zed-industries_zeta-Q4_K_M.gguf", None),
        ({}, "sweep-next-edit-1.5b.q8_0.v2.gguf", "sweep"),
        ({"general.name": "Sweep Next Edit 0.5B"}, "m.gguf", "sweep"),
        ({}, "sweep-next-edit-v2-7B.gguf", None),
        ({}, "zetasepic-Qwen2.5-72B.gguf", None),
        ({"general.name": "Qwen2.5 Coder 7B"}, "qwen.gguf", None),
    ],
)
def test_names_tell_the_format(names: dict[str, str], file: str, expected: str | None) -> None:
    form = detect_edit_format(Mock(metadata=names.get), file)
    assert (form and form.name) == expected
