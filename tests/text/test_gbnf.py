"""GBNF translated to Lark, judged by the texts that llguidance then admits."""

import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from localdflash.text.gbnf import gbnf_to_lark

BYTES = LLTokenizer("byte")


def admits(grammar: str) -> Callable[[str], bool]:
    """Return a predicate: whether the grammar admits a whole text."""
    lark = LLMatcher.grammar_from_lark(gbnf_to_lark(grammar))

    def whole(text: str) -> bool:
        matcher = LLMatcher(BYTES, lark, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        tokens = list(text.encode())
        admitted = matcher.validate_tokens(tokens) == len(tokens)
        return admitted and matcher.consume_tokens(tokens) and matcher.is_accepting()

    return whole


CASES = [
    ('root ::= "a" | "bc"', ["a", "bc"], ["b", "abc", ""]),
    ('root ::= ("a" | "b")+ "!"?', ["a", "ab!", "bba"], ["!", "a!!"]),
    ('root ::= "a" ("" | "b") | ', ["a", "ab", ""], ["b"]),
    ('root ::= my-rule "-" My_Rule\nmy-rule ::= "p"\nMy_Rule ::= "q"', ["p-q"], ["q-p"]),
    ('# comment "\nroot ::= # more [\n  "a" # and ::=\n  "b"\n', ["ab"], ["a"]),
    ('root ::= "\\u00e9\\x41\\U0001F60B\\"\\\\\\n\\t"', ['éA😋"\\\n\t'], ["é"]),
    (r'root ::= [^"\\\x7F\x00-\x1F]', ["a", "é", "/"], ['"', "\\", "\n", "\x7f"]),
    (r"root ::= [&&~~a-c]", ["&", "~", "b"], ["d", "-"]),
    (r"root ::= [+--]", ["+", ",", "-"], ["."]),
    ("root ::= [é-ï漢]", ["é", "ê", "漢"], ["a", "ð"]),
]


@pytest.mark.parametrize(("grammar", "right", "wrong"), CASES)
def test_gbnf_admits_the_texts_that_llama_cpp_admits(grammar: str, right: list[str], wrong: list[str]) -> None:
    admitted = admits(grammar)
    assert [text for text in right if not admitted(text)] == []
    assert [text for text in wrong if admitted(text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("", "no rule 'root'"),
        ("root ::= missing", "rule 'root' uses 'missing'"),
        ('root ::= "a"\nb ::= "x', "line 2: cannot read '\"x'"),
        ("root ::= []", "empty character class: []"),
        (r'root ::= "\q"', r"unknown escape \q"),
        (r'root ::= "\ud800"', "surrogates not allowed"),
    ],
)
def test_a_malformed_grammar_is_refused_with_a_reason(grammar: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        gbnf_to_lark(grammar)


@given(st.text(st.sampled_from('root ::=ab"[]()|*+?{}1,-^\\x0\n#.é')))
def test_any_text_is_a_grammar_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        gbnf_to_lark("root ::= " + text)


@given(
    st.lists(st.tuples(st.characters(exclude_categories=["Cs"]), st.characters(exclude_categories=["Cs"])), min_size=1),
    st.characters(exclude_categories=["Cs"]),
    st.booleans(),
)
@example([("&", "&"), ("&", "~")], "&", False)
@example([("-", "-")], ",", True)
def test_a_character_class_admits_exactly_its_ranges(ranges: list[tuple[str, str]], char: str, negated: bool) -> None:
    ranges = [(min(pair), max(pair)) for pair in ranges]
    inside = "".join(rf"\U{ord(low):08x}-\U{ord(high):08x}" for low, high in ranges)
    expected = any(low <= char <= high for low, high in ranges) != negated
    assert admits(f"root ::= [{'^' if negated else ''}{inside}] | [\\n]")(char) == (expected or char == "\n")


def test_a_large_grammar_takes_linear_time() -> None:
    chain = "".join(f"r{i} ::= r{i + 1}\n" for i in range(4000))
    lark = gbnf_to_lark(f'root ::= r0\n{chain}r4000 ::= "x"')
    assert lark.count("\n") == 4002
    assert gbnf_to_lark("root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000).count("(") == 30_000
