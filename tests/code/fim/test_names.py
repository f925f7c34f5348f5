"""Which words a word at the cursor may become."""

import math

import pytest

from localdflash.code.fim.extent import find_extent
from localdflash.code.fim.known_names import KnownNames

FILE = "import re\n\nlimit_of_words = 3\n"


def plausible(line: str, answer: list[str], probability: float = 0.1, language: str = "python", word: str = "") -> bool:
    names = KnownNames(find_extent(language, FILE + line, "\n"), word, (FILE + line, "def frequency(): ...\n"))
    return all(names.plausible(text, math.log(probability)) for text in answer) and names.plausible_at_the_end()


@pytest.mark.parametrize(
    ("line", "answer", "expected"),
    [
        ("x = re.compile", ["ment", "("], False),
        ("x = re.compile", ["(a)"], True),
        ("x = limit_of", ["_words", " + 1"], True),
        ("x = freq", ["uency", "()"], True),  # a word of another file
        ("x = is", ["instance", "("], True),
        ("def comp", ["ute_all", "("], True),  # a name is given
        ("x = 'comp", ["ilement", "'"], True),
        ("x = ", ["anything", "()"], True),  # no word was begun
    ],
)
def test_words(line: str, answer: list[str], expected: bool) -> None:
    assert plausible(line, answer) == expected


def test_what_healing_draws_again_is_no_part_of_the_new_word() -> None:
    assert not plausible("x = re.compile", [".comp", "ilement", "("], word=".compile")
    assert plausible("x = re.comp", [".compile", "r"], word=".comp") is False
    assert plausible("x = limit", [" limit", "_of_words", ")"], word=" limit")
