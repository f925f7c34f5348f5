"""Which names some letters find, in what order, how fast; against a plain definition of what a match is."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.chat.fuzzy import Haystack, match_positions

NAMES = st.text(alphabet="abAB/_.-ß", min_size=1, max_size=12)


def best(names: list[str], query: str, limit: int = 100) -> list[str]:
    return [names[one.at] for one in Haystack(names, "/").best(query, limit)]


def has_letters(query: str, name: str) -> bool:
    letters = iter(name.lower())
    return all(letter in letters for letter in query.lower())


@pytest.mark.parametrize(
    ("query", "better", "worse"),
    [
        ("lexer", "src/lexer.py", "src/lexer_test.py"),
        ("lexer", "deep/er/lexer.py", "lexer/a.py"),
        ("test", "test_a.py", "a_test.py"),
        ("prompt", "a/prompt.py", "longer/prompt.py"),
        ("be", "BoxEdge.java", "obxxxe.java"),
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


@given(st.lists(NAMES, max_size=20, unique=True), st.text(alphabet="ab", min_size=1, max_size=3), st.integers(1, 5))
@settings(deadline=None)
def test_a_limit_keeps_the_best(names: list[str], query: str, limit: int) -> None:
    assert best(names, query, limit) == best(names, query)[:limit]


@given(NAMES, st.text(alphabet="abAB/_.", min_size=1, max_size=5))
def test_marked_characters_spell_what_was_typed(name: str, query: str) -> None:
    at = match_positions(query, name)
    assert list(at) == sorted(set(at))
    if at:
        assert "".join(name[one] for one in at).lower() == query.lower()
    else:
        assert not has_letters(query, name)


def test_letters_that_grow_when_made_small() -> None:
    assert match_positions("i", "İi") == (1,)
    assert match_positions("ab", "İab") == (1, 2)


@pytest.mark.nightly
def test_twenty_thousand_names_take_no_time() -> None:
    draw = random.Random(1)
    words = [
        "alpha",
        "beta",
        "gamma",
        "parser",
        "token",
        "engine",
        "draft",
        "model",
        "server",
        "client",
        "util",
        "test",
        "prompt",
        "view",
        "chat",
        "store",
    ]
    names = [
        "/".join(draw.choice(words) + "_" + draw.choice(words) for _ in range(draw.randint(1, 5))) + f"{number}.py"
        for number in range(20_000)
    ]
    haystack = Haystack(names, "/")
    haystack.best("warm", 30)
    times = []
    for query in ("e", "pa", "parser_t", "tpd", "zzz", "stcl9", "parser/alpha", "nothing_like_it"):
        begun = time.perf_counter()
        haystack.best(query, 30)
        times.append(time.perf_counter() - begun)
    assert sorted(times)[len(times) // 2] < 0.3  # 0.010 on a quiet machine
