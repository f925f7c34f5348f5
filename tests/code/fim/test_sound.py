"""Soundness of a text at a cursor, with `ast` as the oracle, and the indentation of an empty line of Python."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.code.fim.extent import find_cursor_context
from localdflash.code.fim.python_lines import missing_blanks
from localdflash.code.fim.sound import Soundness


def sound(text: str, before: str, after: str = "\n", language: str = "python") -> bool:
    return Soundness(find_cursor_context(language, before, after), before, after)(text)


CLASS = "class A:\n    def f(self):\n        "

SOUND = {
    "what closes the line's bracket": ("a, b)", "x = f(", "\n"),
    "a block and its body": ("if a:\n            b()", CLASS, "\n"),
    "a header that ends a statement of lines": ("t]:", "def f(\n    a,\n) -> list[in", "\n    pass\n"),
    "in a block whose header was cut off": ("c:", "    if a:\n        b()\n    if ", "\n        e\n"),
    "an opener that is closed below": ("[", "x = ", "\n    1,\n]\n"),
    "a word that ends like an operator": ("or", "raise KeyErr", "\n"),
    "a try whose body is below": ("y:", "def f():\n    tr", "\n        a()\n    except A:\n        b()\n"),
    "a try whose end is below": ("try:\n        a()", "def f():\n    ", "\n    except A:\n        b()\n"),
    "in a body of tabs": ("2", "def f():\n\tx = ", "\n\treturn x\n"),
    "a body of tabs": ("if a:\n\t\tb()", "def f():\n\t", "\n\treturn x\n"),
    "beside an error far away": ("y = 1", "x = (\n" + "\n" * 40 + "def f():\n    pass\n\n\n", "\n"),
}
UNSOUND = {
    "a docstring that nothing closes": ('"""Return the', "def f():\n    ", "\n\n\nx = 1\n"),
    "the line's own bracket left open after another closed": ("str", "def f(\n    a,\n) -> list[", "\n    pass\n"),
    "the line's own bracket, before a long text": ("str", "def f(a) -> list[", "\n    pass\n" + "x = 1\n" * 1000),
    "a second star among parameters": ("*args,", "def f(\n    a,\n    *,\n    ", "\n    b=1,\n):\n    pass\n"),
    "an opener without a body": ("if a:", CLASS, "\n        b()\n"),
    "an operator behind the line's own blank": ("in", "return a ", "\n"),
    "a try that nothing ends": ("try:\n        a()", "def f():\n    ", "\n    b()\n"),
    "an opener without a body, in tabs": ("if a:", "def f():\n\t", "\n\tb()\n"),
    "a dedent to nowhere": ("a = 1\n      b = 2", CLASS, "\n"),
    "a comment that takes the rest of the line": (":  # sorted", "if a", ":\n    b()\n"),
    "a header that takes its body away": ("x() -> None: ...", "def ", "\n    pass\n"),
}


@pytest.mark.parametrize(("text", "before", "after"), SOUND.values(), ids=SOUND)
def test_sound(text: str, before: str, after: str) -> None:
    assert sound(text, before, after)


@pytest.mark.parametrize(("text", "before", "after"), UNSOUND.values(), ids=UNSOUND)
def test_unsound(text: str, before: str, after: str) -> None:
    assert not sound(text, before, after)


@pytest.mark.parametrize(
    ("text", "before", "after", "expected"),
    [
        ("a, b) {\n  return a;\n}", "function f(", "\n", True),
        ("`a ${b", "const t = ", "\n", False),
        ("b) {", "if (a && ", "\n  c();\n}\n", True),  # its body is there
        ("b) {", "while (c) {\n  if (a && ", "\n}\n", False),  # what is there closes another
        ("b()", "if (a) {\n  c();\n}\n", "\n  d();\n}\n", False),  # it opens nothing for what waits
        ("c();", "function f() {\n  ", "\n    b();\n  }\n}\n\ng();\n", False),  # nor for a block below
        (" extends B", "class A", " {\n  f() {}\n}\n", True),  # the line opens it already
        ("&& b &&", "return a\n  && c &&\n  ", "\n  && d\n", False),
    ],
)
def test_javascript(text: str, before: str, after: str, expected: bool) -> None:
    assert sound(text, before, after, "javascript") == expected


LOOP = "void f(void) {\n    list_for_each_entry(pos, head, list) {\n        g(pos);\n    }\n    n += "


@pytest.mark.parametrize(
    ("language", "text", "before", "after", "expected"),
    [
        ("c", "<stdlib.h>", "#include <stdio.h>\n#include ", "\n", True),
        ("c", "/* Return the sum. */", "", "\nint f(void);\n", True),
        ("c", "a >", "x = ", "\n", False),
        ("c", "1;", LOOP, "\n}\n", True),  # the macro above is an error in the grammar
        ("python", "...", "class P:\n    def read(self) -> bytes: ", "\n", True),
        ("python", "zeros(10)", "%matplotlib inline\nimport numpy as np\nx = np.", "\n", True),
        ("python", "zeros(10)", "import numpy as np\nx = np.", "\n%matplotlib inline\n", True),
        ("typescript", "1;", "const a = ", "\nconst b = ;\n", True),
        ("c", "1;", "int f(void) {\n    int n = ", "\n}\n\nAPI int g(int b) {\n    return b;\n}\n", True),
        ("c", "1", "int n = ", "\nint m = ;\n", False),  # an error more than the one below
        ("typescript", "Array<string>", "type B = ", "\n", True),
        ("typescript", "(a) =>", "const f = ", "\n", False),
        ("html", "<li>b</li>", "", "\n", True),
        ("markdown", "Two words.", "", "\n", True),
        ("javascript", "a.", "b = ", "\n", False),
    ],
)
def test_what_looks_like_an_operator_or_is_wrong_elsewhere(
    language: str, text: str, before: str, after: str, expected: bool
) -> None:
    assert sound(text, before, after, language) == expected


FILE = """import os


class A:
    def f(self, a):
        if a:
            return os.getcwd()
        b = [
            1,
            2,
        ]
        return b


x = A()
"""


@given(st.data())
def test_what_is_sound_in_a_whole_file_parses(data: st.DataObject) -> None:
    """A line is replaced by other lines and pieces of lines."""
    lines = FILE.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(0, len(lines[number])))
    before, after = "\n".join([*lines[:number], lines[number][:cut]]), "\n" + "\n".join(lines[number + 1 :]) + "\n"
    pieces = st.sampled_from([*lines, *(line.strip() for line in lines), "(", ")", ":", "a", " ", "\n", "    ", "="])
    text = "".join(data.draw(st.lists(pieces, min_size=1, max_size=4))).rstrip()
    if not text.strip() or not sound(text, before, after) or _parses(before + text + after):
        return
    assert not _parses(before + after)
    assert not _parses("\n".join([*lines[:number], *lines[number + 1 :]]))


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "before", "closed", "expected"),
    [
        ("a, b)", "x = f(", ")", True),  # closes it again
        ("a, b).c", "x = f(", ")", True),
        ("a, b))", "x = f(", ")", False),
        ("a, g(b", "x = f(", ")", False),
        ("a'", "x = f('", "')", False),  # one of the two
        ("a", "x = f('", "')", True),
    ],
)
def test_what_an_editor_closed_is_closed_again_or_left(text: str, before: str, closed: str, expected: bool) -> None:
    assert Soundness.at(find_cursor_context("python", before, "\n"), before, "\n", closed)(text) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("def f():\n", "\n", 4),
        ("class A:\n    def f(self):\n", "\n\n", 8),
        ("if a:\n    b()\n", "\n    c()\n", 4),
        ("x = [\n", "\n]\n", 0),
        ("def f():\n    return", "\n", 0),
        ("if a:\n\tb()\n", "\n\tc()\n", 0),
        ("def f():\n\tpass\n\ndef g():\n", "\n", 0),
        ("def f():\n  pass\n\ndef g():\n", "\n", 2),
        ("class A:\n    def f(self):\n    ", "\n", 4),
        ("if a:\n    ", "\n        b()\n", 0),  # a header is missing, and what is below is its body
        ("if a:\n    if b:\n        c()\n    ", "\n        d()\n", 0),
    ],
)
def test_blanks(before: str, after: str, expected: int) -> None:
    assert missing_blanks(find_cursor_context("python", before, after)) == " " * expected
