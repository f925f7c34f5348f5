"""How far an empty line of Python is indented at least."""

import pytest

from localdflash.code.fim.extent import find_extent
from localdflash.code.fim.python_lines import missing_blanks


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("def f():\n", "\n", 4),
        ("def f():\n", "\n  return 1\n", 2),  # as its other lines are
        ("class A:\n    def f(self):\n", "\n\n", 8),
        ("class A:\n    def f(self):\n    ", "\n\n", 4),  # four are there
        ("if a:\n    b()\n", "\n    c()\n", 4),
        ("if a:\n    b()\n", "\nc()\n", 0),
        ("x = [\n", "\n]\n", 0),
        ("x = '''\n    a\n", "\n    b\n'''\n", 0),
        ("def f():\n    return", "\n", 0),
        ("def f():\n\t", "\n", 0),
        ("if a:\n\tb()\n", "\n\tc()\n", 0),
        ("", "\n    a\n", 0),
    ],
)
def test_blanks(before: str, after: str, expected: int) -> None:
    assert missing_blanks(find_extent("python", before, after)) == " " * expected


def test_other_languages_have_braces() -> None:
    assert missing_blanks(find_extent("javascript", "function f() {\n", "\n}\n")) == ""
