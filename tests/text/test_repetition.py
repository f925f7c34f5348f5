"""Where an answer that repeats itself is cut, and what is no repetition."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.text.repetition import MAX_ROUND_CHARS, MIN_CHARS, ROUNDS, Repetition

PROSE = "Somebody walked through the snow for an hour, and then it was dark. "


def cut(text: str, sizes: Sequence[int] = (10**6,)) -> str:
    """What is left of a text that comes in pieces of these sizes, again and again."""
    ending, kept, at, number = Repetition(), "", 0, 0
    while at < len(text):
        size = sizes[number % len(sizes)]
        kept += ending.push(text[at : at + size])
        at, number = at + size, number + 1
    kept += ending.finish()
    assert ending.reason == ("repeat" if ending.ended else "")
    assert ending.ended or kept == text
    return kept


@pytest.mark.parametrize("piece", ["name, ", "a", "\n", "ha ha! ", PROSE, PROSE * 2 + "No. ", "x" * 300 + "y"])
def test_a_piece_again_and_again_is_cut(piece: str) -> None:
    kept = cut("Hi! " + piece * 5000)
    assert MIN_CHARS <= len(kept) <= 4 + max((ROUNDS + 2) * len(piece), MIN_CHARS)


@pytest.mark.parametrize(
    "text",
    [
        "-" * 300,
        "0, " * 120,
        PROSE * 3,
        (PROSE * 4 + "No. ") * 3,
        "".join(f"    assert add({one}, 1) == {one + 1}\n" for one in range(300)),
        "".join(f"{number} " for number in range(MAX_ROUND_CHARS // 2)) * 8,
    ],
)
def test_what_is_no_repetition(text: str) -> None:
    assert cut(text) == text


@given(
    st.text("ab ", max_size=30),
    st.text("abc\n", min_size=1, max_size=60),
    st.lists(st.integers(1, 90), min_size=1, max_size=9),
)
def test_the_pieces_decide_nothing(before: str, piece: str, sizes: list[int]) -> None:
    text = before + piece * (1200 // len(piece)) + before
    assert cut(text, sizes) == cut(text)


def test_nothing_comes_after_the_end() -> None:
    ending = Repetition()
    ending.push("a" * 1000)
    assert (ending.push("b"), ending.finish(), ending.ended) == ("", "", True)
