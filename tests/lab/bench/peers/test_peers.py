"""The comparison with llama-server, against a program that speaks as it does and takes the times it is told."""

from typing import Any

import pytest

from localdflash.lab.scripts.peers import compare_peers
from localdflash.lab.scripts.peers.compare_peers import OURS
from localdflash.lab.scripts.peers.sides import PeerAnswer, PeerQuestion


class Told:
    """A side that answers a text in so many verifies of ten milliseconds, and remembers when it was asked."""

    def __init__(self, name: str, text: str, verifies: int, order: list[str]) -> None:
        self._name, self._text, self._verifies, self._order = name, text, verifies, order

    def ask(self, question: Any, max_tokens: int) -> Any:
        self._order.append(self._name)
        return PeerAnswer(self._text, max_tokens, self._verifies * 10.0, self._verifies)


def question(category: str, tokens: int = 8) -> Any:
    return PeerQuestion(category, [1, 2, 3], tokens)


def test_sides_take_turns_and_are_compared_by_category() -> None:
    order: list[str] = []
    texts = {OURS: ("a", 2), f"{OURS} plain": ("a", 8), "peer plain": ("a", 8), "peer n": ("b", 4)}
    sides = {name: Told(name, text, verifies, order) for name, (text, verifies) in texts.items()}
    found = compare_peers.compare(sides, [question("edit"), question("talk", 4), question("edit")])
    names = [*sides]  # the first of each is not counted
    assert order == [*names, *names, *names[1:], names[0], *names[2:], *names[:2]]
    assert found["prompts"] == 3
    ours, _, plain, other = (found["sides"][name] for name in sides)
    assert ours["tok_s"] == pytest.approx(20 / 0.06, rel=1e-3)
    assert (ours["tau"], plain["tau"], other["tau"]) == (3.333, 0.833, 1.667)
    assert (plain["ours_over_this"], other["ours_over_this"]) == (4.0, 2.0)
    assert plain["ours_over_this_by_category"] == {"edit": 4.0, "talk": 4.0}
    assert (ours["same_text"], plain["same_text"], other["same_text"]) == ("3/3", "3/3", "0/3")
    assert (ours["same_as_own_plain"], other["same_as_own_plain"]) == ("3/3", "0/3")
