"""How far an empty line of Python is indented at least."""

import pytest

from localdflash.code.fim.extent import find_extent
from localdflash.code.fim.python_lines import missing_blanks


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("def f():\n", "\n", 4),
        ("class A:\n    def f(self):\n", "\n\n", 8),
        ("if a:\n    b()\n", "\n    c()\n", 4),
        ("x = [\n", "\n]\n", 0),
        ("def f():\n    return", "\n", 0),
        ("def f():\n\t", "\n", 0),
        ("if a:\n\tb()\n", "\n\tc()\n", 0),
        ("", "\n    a\n", 0),
    ],
)
def test_blanks(before: str, after: str, expected: int) -> None:
    assert missing_blanks(find_extent("python", before, after)) == " " * expected
