"""Which names some letters find, in what order, how fast; against a plain definition of what a match is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.chat.fuzzy import Haystack, match_positions

NAMES = st.text(alphabet="abAB/_.-ß", min_size=1, max_size=12)


def best(names: list[str], query: str, limit: int = 100) -> list[str]:
    return [names[at] for _, at in Haystack(names, "/").best(query, limit)]


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
def test_order(query: str, better: str, worse: str) -> None:
    assert best([worse, better], query) == [better, worse]


def test_letters_that_are_far_apart_are_no_match() -> None:
    assert best(["a" + "x" * 60 + "b" + "x" * 60 + "c"], "abc") == best(["a"], "") == []


@given(st.lists(NAMES, max_size=20, unique=True), st.text(alphabet="abAB/_", min_size=1, max_size=4))
@settings(deadline=None)
def test_exactly_names_with_these_letters_are_found(names: list[str], query: str) -> None:
    found = best(names, query)
    assert len(found) == len(set(found))
    assert set(found) == {name for name in names if has_letters(query, name)}


@given(NAMES, st.text(alphabet="abAB/_.", min_size=1, max_size=5))
def test_marked_characters_spell_what_was_typed(name: str, query: str) -> None:
    assert match_positions("ab", "abxb") == (0, 1)  # adjacent, at the start too
    at = match_positions(query, name)
    assert list(at) == sorted(set(at))
    if at:
        assert "".join(name[one] for one in at).lower() == query.lower()
    else:
        assert not has_letters(query, name)
