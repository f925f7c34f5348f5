"""Repeated edits: proposals after the same edit in one line and the next."""

import pytest

from tests.code.next_edit.marks import check


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "x = «a|int(a)»\ny = «b|int(b)»\nz = ‹c|int(c)›\n"),
        ("python", "def f(x, y, z):\n    «x|self.x» = x\n    «y|self.y» = y\n    ‹z|self.z› = z\n"),
        ("python", "d = {\n    'a': «1|'1'»,\n    'b': «2|'2'»,\n    'c': ‹3|'3'›,\n}\n"),
        (
            "python",
            "def a(x)«| -> None»:\n    pass\n\ndef b(x)«| -> None»:\n    pass\n\ndef c(x)‹| -> None›:\n    pass\n",
        ),
        ("javascript", "«const|let» a = 1;\n«const|let» b = 2;\n‹const|let› c = 3;\n"),
        ("typescript", "interface A {\n  «|readonly »a: X;\n  «|readonly »b: Y;\n  ‹|readonly ›c: Z;\n}\n"),
        ("python", "x = «a|int(a)»\ny = «b|int(b)»\nprint(1)\n"),  # another statement follows
    ],
)
def test_anything_twice(language: str, text: str) -> None:
    check(language, text)


@pytest.mark.parametrize(
    "text",
    [
        "x = «1|2»\ny = 1\nz = 1\n",  # a value, once
        "a.«append|add»(1)\nprint(b)\nc.append(3)\n",  # not in the very next statement
        "x = «a|int(a)»\nprint()\ny = 1\nw = 2\ny = «b|int(b)»\nz = c\n",  # far apart
        "# «one|two»\n# one\n# one\n",
        "x = «a|int(a)»\ny = «b|str(b)»\nz = c\n",  # not the same
    ],
)
def test_nothing_is_proposed_where_it_would_be_a_guess(text: str) -> None:
    check("python", text)
