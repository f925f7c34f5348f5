import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.lab.bench.typist import AcceptedText, agreeing


@pytest.mark.parametrize(
    ("ghost", "rest", "taken"),
    [
        ("return x", "return x\n", AcceptedText("all", "return x")),
        ("return x\n    y", "return x\n    z", AcceptedText("line", "return x")),
        ("\n    a = 1\n    b", "\n    a = 1\n", AcceptedText("line", "\n    a = 1")),
        ("return y", "return x", AcceptedText("word", "return")),
        (" = foo(1)", " = foobar(2)", None),
        ("x = 1", "x = 2", None),
        ("\n\n", "\n\n", None),
    ],
)
def test_the_largest_part_that_agrees(ghost: str, rest: str, taken: AcceptedText | None) -> None:
    assert agreeing(ghost, rest) == taken


@given(st.text("ab =\n", min_size=1), st.text("ab =\n", min_size=1))
def test_nothing_is_accepted_that_does_not_follow(ghost: str, rest: str) -> None:
    if taken := agreeing(ghost, rest):
        assert rest.startswith(taken.text)
        assert ghost.startswith(taken.text)
        assert len(taken.text.strip()) >= 2
