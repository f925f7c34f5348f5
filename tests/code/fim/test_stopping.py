import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.code.fim.extent import Mode, find_cursor_context
from localdflash.code.fim.stopping import Stopping


def told(language: str, before: str, after: str, text: str, size: int) -> tuple[str, str]:
    """Return the text that is kept, and why it ended."""
    stopping = Stopping(find_cursor_context(language, before, after))
    pieces = []
    for start in range(0, len(text), size):
        pieces.append(stopping.push(text[start : start + size]))
        if stopping.ended:
            break
    pieces.append(stopping.finish())
    return "".join(pieces), stopping.reason


BODY = "c = a + b\n    return c"

CASES = {
    # language, before, after, what the model writes, what is left, why
    "the statement": ("python", "x = ", "\n\ny = 1\n", "a + b\nz = 3\n", "a + b", "statement"),
    "the block after its opener": (
        "python",
        "def f(a, b):\n    ",
        "\n\nx = 1\n",
        f"{BODY}\n\n\nx = 2\n",
        BODY,
        "block",
    ),
    "a header whose block stands below": ("python", "if ", "\n    b()\n", "a:\n    c()\n", "a:", "statement"),
    "nothing where the block is missing": ("python", "if x:\n", "\n", "y = 1\n", "", "block"),
    "a docstring may be dedented": (
        *("python", "def f():\n    ", "\n", '"""One.\n\nTwo.\n    """\n    return 1\nx = 1\n'),
        *('"""One.\n\nTwo.\n    """\n    return 1', "block"),
    ),
    "brackets that nobody closes": ("python", "f(\n    ", "\n", "a,\n    b,\n)\nx = 1\n", "a,\n    b,\n)", "block"),
    "a blank too many": ("python", "def f():\n    a = 1\n    ", "\n", " return a\n", "return a", "block"),
    "a bracket that only a string below has": (
        *("python", "def netloc(sel", '\n    return "[:)" + ")"\n', "f) -> str:\n", "f) -> str:", "statement"),
    ),
    "a bracket that is there": ("python", "f(", ")\n", "a, b)\nx = 1\n", "a, b", "suffix"),
    "a quote that is there": ("python", 'f("', '")\n', 'abc")\n', "abc", "suffix"),
    "an escaped quote": ("python", "f('", "')\n", "a\\'b')\n", "a\\'b", "suffix"),
    "the rest of the line": ("python", "x = ", "(a, b)\n", "foo(a, b)\ny\n", "foo", "suffix"),
    "the line after it": (
        *("python", "a\n", "\nb = 1\nimport sys_again\n", "c = 1\nimport sys_again\n"),
        *("c = 1", "suffix"),
    ),
    "a line that the next function has too": (
        *(
            "python",
            "def test_get():\n    ",
            "\n\n\ndef test_put():\n    client = make()\n",
            "client = make()\n    get()\n",
        ),
        *("client = make()\n    get()", ""),
    ),
    "two lines in turns": (
        *("python", "first = 1\n", "", "second = 2\nthird = 3\nsecond = 2\nthird = 3\n"),
        *("second = 2\nthird = 3", "repeat"),
    ),
    "three empty lines": ("python", "a = 1\n", "", "\n\n\n\nb = 1\n", "", "block"),
    "a brace that others close": (
        *("javascript", "function f(a) {\n  ", "\n}\n", "if (a) {\n    g();\n  }\n  return 2;\n}\nh();\n"),
        *("if (a) {\n    g();\n  }\n  return 2;", "block"),
    ),
    "a line feed before what is set apart": (
        *("python", "def f():\n    a()\n", "\n", "\n\ndef g():\n    b()\n"),
        *("\n\ndef g():\n    b()", ""),
    ),
    "a phrase again and again": (
        *("python", "# ", "\n", "the end of the end of the end of the end"),
        *("the end of the end of", "repeat"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_where_text_ends(case: str) -> None:
    language, before, after, text, left, reason = CASES[case]
    for size in (1, 3, 1000):
        assert told(language, before, after, text, size) == (left, reason)


# `‹` is the cursor, `›` where the completion ends, `¦` where the text after the cursor begins (else there is none).
REAL_CODE = re.findall(
    r"^=== (\w+): (.+)\n((?:(?!=== ).*\n)+)",
    Path(__file__).with_name("where_code_ends.txt").read_text("utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize("language", sorted({case[0] for case in REAL_CODE}))
def test_an_answer_stops_where_a_user_would(language: str) -> None:
    for _, name, marked in (case for case in REAL_CODE if case[0] == language):
        before, _, rest = marked.partition("‹")
        text, _, after = rest.replace("›", "").partition("¦")
        for size in (1, 4, 1000):
            assert told(language, before, after or "\n", text, size)[0] == rest.partition("›")[0], name


def weighed(pieces: list[tuple[str, float]], min_probability: float = 0.2) -> tuple[str, str, list[str]]:
    """Return the text kept of tokens with probabilities, why it ended, and what was returned after each token."""
    stopping = Stopping(find_cursor_context("python", "x = ", "\n"), min_probability=min_probability)
    told = [stopping.push(text, math.log(probability)) for text, probability in pieces]
    return "".join(told) + stopping.finish(), stopping.reason, told


def test_it_ends_before_two_tokens_that_are_too_unlikely() -> None:
    assert weighed([("f", 0.9), ("(", 0.9), ("a", 0.1), (",", 0.3), (" b", 0.9)])[:2] == ("f(", "unsure")
    assert weighed([("f", 0.03), ("(", 0.9)])[:2] == ("", "unsure")
    assert weighed([("f", 0.9), ("(", 0.05), ("a", 0.9), (")", 0.9)])[:2] == ("f(a)", "")
    assert weighed([("f", 0.1), ("(", 0.1)], min_probability=0.0)[:2] == ("f(", "")


LANGUAGES = st.sampled_from(["python", "javascript", "c", "lua", "rust", ""])
CODE = st.text(alphabet="ab1 \n\n()[]{}'\"`#/*,;:=\\\té", max_size=80) | st.lists(
    st.sampled_from(
        ["x = 1\n", "    y = f(\n", "        a,\n", "    )\n", "\n", "}\n", "if a:\n", "{\n", '"""', "else"]
    )
).map("".join)


@settings(max_examples=80)
@given(
    LANGUAGES, CODE, CODE, CODE, st.lists(st.integers(1, 9), max_size=30), st.sampled_from(["auto", "line", "lines"])
)
def test_the_pieces_do_not_matter(
    language: str, before: str, after: str, text: str, cuts: list[int], mode: Mode
) -> None:
    cursor = find_cursor_context(language, before, after, mode)
    whole = Stopping(cursor)
    expected = whole.push(text) + whole.finish()
    stopping, pieces, at = Stopping(cursor), list[str](), 0
    for cut in [*cuts, len(text)]:
        pieces.append(stopping.push(text[at : at + cut]))
        assert text.lstrip().startswith("".join(pieces).lstrip())  # nothing is taken back, and nothing made up
        at += cut
    pieces.append(stopping.finish())
    assert "".join(pieces) == expected
    assert stopping.reason == whole.reason
    assert expected == expected.rstrip()
    assert text.lstrip().startswith(expected.lstrip())
