import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.lab.bench.editor import ShownSuggestion
from localdflash.lab.bench.typist import AcceptedText, TypedKeys, Typist, agreeing


@pytest.mark.parametrize(
    ("ghost", "rest", "taken"),
    [
        ("return x", "return x\n", AcceptedText("all", "return x")),
        ("return x\n    y", "return x\n    z", AcceptedText("line", "return x")),
        ("\n    a = 1\n    b", "\n    a = 1\n", AcceptedText("line", "\n    a = 1")),
        ("return y", "return x", AcceptedText("word", "return")),
        (" = foo(1)", " = foobar(2)", None),
        ("x = 1", "x = 2", None),
        ("x", "x\n", None),
        ("\n\n", "\n\n", None),
        ("return x", "ret", None),
        ("while", "for", None),
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


class Paper:
    """An editor that suggests, after some text, what it was told to."""

    def __init__(self, suggestions: dict[str, str]) -> None:
        self.before, self.changed = "", asyncio.Event()
        self.shown: ShownSuggestion | None = None
        self.suggestions = suggestions
        self.done: list[str] = []

    def type(self, key: str) -> None:
        self._take(key, f"key {key}")

    def accept(self, text: str) -> None:
        self._take(text, f"accept {text}")

    def _take(self, text: str, what: str) -> None:
        self.done.append(what)
        self.before += text
        if self.shown and self.shown.ghost.startswith(text) and self.shown.ghost != text:
            self.shown.ghost = self.shown.ghost[len(text) :]
        else:
            self.shown = None
        if suggestion := self.suggestions.get(self.before):
            self.shown = ShownSuggestion({}, suggestion, time.perf_counter())
        self.changed.set()


def typed(text: str, suggestions: dict[str, str]) -> tuple[Any, TypedKeys]:
    paper, keys = Paper(suggestions), TypedKeys()
    asyncio.run(Typist(paper, "seed", 50.0).type(text, keys))  # type: ignore[arg-type]
    assert paper.before == text
    return paper, keys


def test_a_suggestion_that_stays_is_accepted() -> None:
    paper, keys = typed("x = compute(1)\n", {"x": " = compute(1)"})
    assert keys.accepted == {"all": 1, "line": 0, "word": 0}
    assert keys.keys == 15
    assert keys.pressed == len(paper.done) < 8
    assert keys.accepted_characters == keys.keys - keys.pressed + 1


def test_a_suggestion_is_judged_once() -> None:
    _, keys = typed("x = a.b.c.d.e.f.g.h.i.append(2)", {"x = ": "a.b.c.d.e.f.g.h.i.append(1)"})
    assert keys.pressed == keys.keys
