import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.code.fim.brackets import CLOSERS, OPENERS
from localdflash.lsp.closed import closed_after, closes_again


@pytest.mark.parametrize(
    ("line", "rest", "closed"),
    [
        ("foo(", ")", ")"),
        ("foo([", "])", "])"),
        ('foo("', '")', '")'),
        ("", ")", ""),  # another line opened it
        ("foo(", "]", ""),
        ("foo(", ")  # why", ""),
        ("foo(", ");", ""),  # who typed that meant to go on before it
        ("# see foo(", ")", ""),
        ('x = "foo(', ')"', ""),  # no bracket of the code
    ],
)
def test_closed(line: str, rest: str, closed: str) -> None:
    assert closed_after("python", line, rest) == closed


@given(st.text("([{", max_size=6), st.text("ab, ", max_size=6))
def test_all_that_a_line_opened_is_closed_again(opened: str, text: str) -> None:
    closed = "".join(CLOSERS[OPENERS.index(one)] for one in reversed(opened))
    assert closed_after("python", "x = " + opened, closed) == closed
    assert closes_again("python", "x = " + opened, closed, text + closed) or not closed
    assert not closed or not closes_again("python", "x = " + opened, closed, text + closed[:-1])
