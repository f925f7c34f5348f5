"""Endings of answers: which text is shown, and when; known names."""

import math
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.code.fim.endings import plan_ending
from localdflash.code.fim.extent import Mode, find_cursor_context
from localdflash.code.fim.known_names import KnownNames
from localdflash.code.fim.presentable import PresentableEnding
from localdflash.code.fim.prompt import Gap


def ending(before: str, after: str, *, asked: bool = False) -> PresentableEnding:
    mode, min_probability = ("open", 0.0) if asked else ("auto", 0.25)
    gap = Gap("file.py", "python", before, "", after)
    return plan_ending(gap, (), cast(Mode, mode), min_probability, adds_blanks=False)[1]()


def shown(before: str, after: str, tokens: list[tuple[str, float]]) -> str:
    """Return the text that is shown of tokens with their probabilities."""
    one = ending(before, after)
    pieces = []
    for text, probability in tokens:
        pieces.append(one.push(text, math.log(probability)))
        if one.ended:
            break
    pieces.append(one.finish())
    return "".join(pieces)


def sure(text: str) -> list[tuple[str, float]]:
    return [(text, 0.9)]


DOUBT = [("?", 0.01), ("?", 0.01)]

CASES = {
    # before, after, tokens, what is shown
    "a dangling operator": ("x = ", "\n", [("a", 0.9), (" + b", 0.9), (" + ", 0.9), *DOUBT], "a + b"),
    "a line and a half": (
        *("def f(a):\n    ", "\n\n\nx = 1\n"),
        *([("b = 1\n    ", 0.9), ("return (b", 0.9), *DOUBT], "b = 1"),
    ),
    "what follows the cursor in part": ("def pop(self, key, d", "=None):\n    pass\n", sure("efault=None"), "efault"),
    "what follows the cursor": ("f(", ")\n", sure("a, b)\n"), "a, b"),
    "a half call": ("vali", "\n", [("dator", 0.9), (" = self._get", 0.9), ("(", 0.1), ("x", 0.1), *DOUBT], "dator"),
    "a half call that the model ends": ("vali", "\n", sure("dator = self._get("), "dator"),
    "a called name": ("x = self._g", "\n", [("et", 0.9), ("(", 0.9), ("a", 0.1), *DOUBT], "et"),
    "a runaway number": ("x = a", "\n", sure(" + 1" + "0" * 60 + "\n"), ""),
}


@pytest.mark.parametrize(("before", "after", "tokens", "expected"), CASES.values(), ids=CASES)
def test_ends(before: str, after: str, tokens: list[tuple[str, float]], expected: str) -> None:
    assert shown(before, after, tokens) == expected


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 7)), st.booleans())
def test_the_pieces_do_not_matter_and_nothing_is_taken_back(cuts: list[int], asked: bool) -> None:
    text = "b = [\n        a,\n    ]\n    if b:\n        return (b\n"
    whole = ending("def f(a):\n    ", "\n\n\nx = 1\n", asked=asked)
    expected = whole.push(text) + whole.finish()
    one, came, at = ending("def f(a):\n    ", "\n\n\nx = 1\n", asked=asked), "", 0
    for cut in [*cuts, len(text)]:
        came += one.push(text[at : at + cut])
        assert text.startswith(came)
        at += cut
    assert came + one.finish() == expected == "b = [\n        a,\n    ]"


END = ""  # the model ends its text
GOES_ON = {
    "a header goes on into its body": (
        *("def f(a):\n    ", "\n\n\nx = 1\n"),
        *(
            [("if", 0.9), (" a:", 0.9), END, ("\n        ", 0.2), ("return", 0.1), (" a", 0.1), END],
            "if a:\n        return a",
        ),
    ),
    "a statement goes on to the header that is missing": (
        *("def f(a):\n    ", "\n        return a\n"),
        *([("b", 0.9), (" = 1", 0.9), ("\n\n", 0.9), ("    if b:", 0.9), ("\n", 0.9)], "b = 1\n\n    if b:"),
    ),
    "a call goes on to its end": (
        *("vali", "\n", [("dator", 0.9), (" = self._get(", 0.9), END, (")", 0.5), END], "dator = self._get()"),
    ),
    "not for ever": ("x = ", "\n", [("f", 0.9), ("(", 0.9), END, ("(", 0.9), END, ("(", 0.9), END, ("))))", 0.9)], "f"),
}


REQUESTED = {
    "a call continues past the model's end": ("x = ", "\n", ["f(a", END, ", b", END, ")", END], "f(a, b)"),
    "a sound statement ends with the model": ("x = ", "\n", ["f(a)", END, "\ny = 2"], "f(a)"),
    "lines follow the cursor's line": (
        *("def f(a):\n    if a", " < 3:\n        return 2\n"),
        *([" > 5:\n        return 1\n    if a", END, "bc", END], " > 5:\n        return 1\n    if a"),
    ),
    "the rest of the cursor's line is not repeated": (
        *("def f(n):\n    n ", "ult\n"),
        *(["+= 1\n    return result", END], "+= 1\n    return res"),
    ),
    "an answer that is never sound is cut to its sound beginning": ("x = ", "\n", ["f(", END, "(", END, "(", END], "f"),
    "a repeated closer is no answer, and no error of syntax": ("x = (1", ")\n", [")", END], ""),
    "without one it is cut at the first end": ("x = ", "\n", ["(", END, "[", END, "{", END], "("),
}


@pytest.mark.parametrize(("before", "after", "tokens", "expected"), REQUESTED.values(), ids=REQUESTED)
def test_requested(before: str, after: str, tokens: list[str], expected: str) -> None:
    one, came = ending(before, after, asked=True), ""
    for token in tokens:
        if token == END and not one.resumes():
            break
        came += one.push(token, math.log(0.9)) if token else ""
    assert came + one.finish() == expected
    assert (one.reason == "unsound") == (expected == "(")


@pytest.mark.parametrize(("before", "after", "tokens", "expected"), GOES_ON.values(), ids=GOES_ON)
def test_goes_on(before: str, after: str, tokens: list[tuple[str, float] | str], expected: str) -> None:
    one, came = ending(before, after), ""
    for token in tokens:
        if isinstance(token, str):
            if not one.resumes():
                break
            continue
        came += one.push(token[0], math.log(token[1]))
        if one.ended:
            break
    assert came + one.finish() == expected


FILE = "import re\n\nlimit_of_words = 3\n"


def plausible(line: str, answer: list[str], probability: float = 0.1, language: str = "python", word: str = "") -> bool:
    names = KnownNames(find_cursor_context(language, FILE + line, "\n"), word, (FILE + line, "def frequency(): ...\n"))
    return all(names.accepts(text, math.log(probability)) for text in answer) and names.accepts_at_end()


@pytest.mark.parametrize(
    ("line", "answer", "expected"),
    [
        ("x = re.compile", ["ment", "("], False),
        ("x = limit_of", ["_words", " + 1"], True),
        ("x = freq", ["uency", "()"], True),  # a word of another file
        ("def comp", ["ute_all", "("], True),  # a name is given
        ("x = 'comp", ["ilement", "'"], True),
        ("x = ", ["anything", "()"], True),  # no word was begun
    ],
)
def test_words(line: str, answer: list[str], expected: bool) -> None:
    assert plausible(line, answer) == expected
