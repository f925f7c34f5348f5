import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.code.fim.brackets import CLOSERS, OPENERS
from localdflash.lsp.closers import closers_after, closes_again


@pytest.mark.parametrize(
    ("line", "rest", "closers"),
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
def test_closers_after(line: str, rest: str, closers: str) -> None:
    assert closers_after("python", line, rest) == closers


@given(st.text("([{", max_size=6), st.text("ab, ", max_size=6))
def test_all_that_a_line_opened_is_closed_again(opened: str, text: str) -> None:
    closers = "".join(CLOSERS[OPENERS.index(one)] for one in reversed(opened))
    assert closers_after("python", "x = " + opened, closers) == closers
    assert closes_again("python", "x = " + opened, closers, text + closers) or not closers
    assert not closers or not closes_again("python", "x = " + opened, closers, text + closers[:-1])
