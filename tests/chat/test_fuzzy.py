"""Fuzzy search: order of the matches, and its results compared with a simple definition of a match."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.chat.fuzzy import Haystack, match_positions

NAMES = st.text(alphabet="abAB/_.-ß", min_size=1, max_size=12)


def find_best(names: list[str], query: str, limit: int = 100) -> list[str]:
    return [names[at] for _, at in Haystack(names, "/").find_best(query, limit)]


def has_letters(query: str, name: str) -> bool:
    letters = iter(name.lower())
    return all(letter in letters for letter in query.lower())


@pytest.mark.parametrize(
    ("query", "better", "worse"),
    [
        ("lexer", "src/lexer.py", "src/lexer_test.py"),
        ("lexer", "deep/er/lexer.py", "lexer/a.py"),
        ("test", "test_a.py", "a_test.py"),
    ],
)
def test_better_match_comes_first(query: str, better: str, worse: str) -> None:
    assert find_best([worse, better], query) == [better, worse]


def test_scattered_letters_do_not_match() -> None:
    assert find_best(["a" + "x" * 60 + "b" + "x" * 60 + "c"], "abc") == find_best(["a"], "") == []


@given(st.lists(NAMES, max_size=20, unique=True), st.text(alphabet="abAB/_", min_size=1, max_size=4))
@settings(deadline=None)
def test_exactly_the_names_with_the_letters_in_order_are_found(names: list[str], query: str) -> None:
    found = find_best(names, query)
    assert len(found) == len(set(found))
    assert set(found) == {name for name in names if has_letters(query, name)}


@given(NAMES, st.text(alphabet="abAB/_.", min_size=1, max_size=5))
def test_match_positions_spell_the_query(name: str, query: str) -> None:
    assert match_positions("ab", "abxb") == (0, 1)  # adjacent, at the start too
    at = match_positions(query, name)
    assert list(at) == sorted(set(at))
    if at:
        assert "".join(name[one] for one in at).lower() == query.lower()
    else:
        assert not has_letters(query, name)
