"""Where a file is completed: every hole is code, inside the text, and of its kind."""

import random

import pytest

from localdflash.lab.train.adapter_holes import LONGEST, SHARES, Holes, TrainingHole

PYTHON = '''"""Totals of orders, é included."""
import os
from sys import argv


class Order:
    """What somebody bought."""

    def __init__(self, items: list[int]) -> None:
        self.items = items  # all of them

    def total(self, rate: float = 0.2) -> float:
        """With tax."""
        if not self.items:
            return 0.0
        return sum(
            item * (1 + rate)
            for item in self.items
        )
'''
SCRIPT = "import { a } from './a'\n\nexport function twice(x) {\n\tif (x) {\n\t\treturn [x, x]\n\t}\n\treturn a(x)\n}\n"


def drawn(language: str, text: str, count: int = 400) -> list[TrainingHole]:
    holes, rng = Holes(language, text), random.Random(0)
    return [holes.draw(rng) for _ in range(count)]


@pytest.mark.parametrize(("language", "text"), [("python", PYTHON), ("tsx", SCRIPT)])
def test_holes_of_all_kinds_lie_in_the_text(language: str, text: str) -> None:
    found = drawn(language, text)
    assert {hole.kind for hole in found} == set(SHARES)
    for hole in found:
        assert 0 <= hole.start < hole.end <= len(text)
        middle = text[hole.start : hole.end]
        assert len(middle) <= LONGEST
        assert hole.is_open == (hole.kind == "open")
        if hole.kind in ("rest", "line", "node"):
            assert middle == middle.rstrip()
        if hole.kind in ("rest", "line"):
            assert "\n" not in middle
            assert text[hole.end :].lstrip(" \t").startswith("\n")
        if hole.kind == "line":
            assert not text[: hole.start].rpartition("\n")[2].strip()
