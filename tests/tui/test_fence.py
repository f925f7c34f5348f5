"""Code in a MarkdownDocument: every byte kept, highlighted as it comes, wrapped and never cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.text.sanitize import sanitize
from localdflash.tui.fence import Code
from localdflash.tui.highlight import lexer_for
from localdflash.tui.styled_lines import Line
from tests.tui.markdown_samples import copied, document

_CODE = st.text(st.sampled_from("ab (){}'\"#/*\n\t\r日é\u0301\0\x1b\ud800=:"), max_size=200)
_LANGUAGES = st.sampled_from(("", "python", "js", "c", "rust", "html", "json", "yaml", "diff", "sh", "nonsense"))


def fenced(code: str, language: str = "python") -> str:
    return f"````{language}\n{code}\n````\n"


@settings(max_examples=80, deadline=None)
@given(_CODE, _LANGUAGES, st.integers(1, 60))
def test_code_is_byte_true_and_its_lines_joined_are_its_safe_copy(code: str, language: str, width: int) -> None:
    made = document(fenced(code, language))
    (fence,) = made.fences()
    assert (fence.code, fence.closed, fence.language) == (code + "\n", True, language)
    shown = copied(made.lines(width)[1:])
    assert shown == sanitize(code + "\n").expandtabs(4)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```py\r\na\r\n\tb\r\n```\r\n", "a\r\n\tb\r\n"),
        ("> ```\n> a \n>\n> b\n> ```\n", "a \n\nb\n"),
        ("1. ```\n   a\0\u200b\n", "a\0\u200b\n"),
        ("~~~~\n```\n~~~\n~~~~~  \n", "```\n~~~\n"),
        ("```\nno end", "no end"),
    ],
)
def test_code_of_fences_wherever_they_stand(text: str, code: str) -> None:
    assert [fence.code for fence in document(text).fences()] == [code]


def styles(lines: list[Line], text: str) -> list[str]:
    return [run.style for line in lines for run in line.runs if text in run.text]


@pytest.mark.parametrize("language", ["c", "js", "go", "rust", "css", "php"])
def test_comments_go_on_over_lines(language: str) -> None:
    code = "<?php\n" if language == "php" else ""
    lines = list(
        document(fenced(code + "x; /* one\n * return two\n three */ y;\nreturn z; // q\n", language)).lines(60)
    )
    assert styles(lines, "return two") == ["fence syntax.comment"]
    assert styles(lines, "three */") == ["fence syntax.comment"]
    assert "comment" not in " ".join(styles(lines, "return z") + styles(lines, "y;"))


@pytest.mark.parametrize("language", ["nonsense", "python:src/x.py", "{.python}", "../x"])
def test_names_of_languages(language: str) -> None:
    assert (lexer_for(language) is not None) == ("python" in language.lower())


def test_a_fence_read_again_goes_on_from_the_line_that_changed() -> None:
    read, fresh = Code("python", 1), Code("python", 1)
    read.become(["x\n", "'''\n", "def\n", ""])
    read.lines(40)
    for code in (read, fresh):
        code.become(["x\n", "y\n", "def\n", "return"])
    assert list(read.lines(40)) == list(fresh.lines(40))
    assert read.code == "x\ny\ndef\nreturn"
