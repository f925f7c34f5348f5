"""Code in a MarkdownDocument: every byte kept, highlighted as it comes, wrapped and never cut."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.text.sanitize import sanitize
from localdflash.tui.fence import LONGEST, Code
from localdflash.tui.highlight import exact, lexer_for
from localdflash.tui.markdown import MarkdownDocument
from localdflash.tui.styled_lines import Line, StyledRun
from tests.tui.markdown_samples import copied, document

_CODE = st.text(st.sampled_from("ab (){}'\"#/*\n\t\r日é\u0301\0\x1b\ud800=:"), max_size=200)
_LANGUAGES = st.sampled_from(("", "python", "js", "c", "rust", "html", "json", "yaml", "diff", "sh", "nonsense"))


def fenced(code: str, language: str = "python") -> str:
    return f"````{language}\n{code}\n````\n"


@settings(max_examples=300, deadline=None)
@given(_CODE, _LANGUAGES, st.integers(1, 60))
def test_code_is_byte_true_and_its_lines_joined_are_its_safe_copy(code: str, language: str, width: int) -> None:
    made = document(fenced(code, language))
    (fence,) = made.fences
    assert (fence.code, fence.closed, fence.language) == (code + "\n", True, language)
    shown = copied(made.lines(width)[fence.first_line + 1 :])
    assert shown == sanitize(code + "\n").expandtabs(4)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```py\r\na\r\n\tb\r\n```\r\n", "a\r\n\tb\r\n"),
        ("  ```\n  a\n b\n   c\n\td\n  ```\n", "a\nb\n c\n\td\n"),
        ("- x\n  ```\n  a\r\n\r\n    b\n  ```\n", "a\r\n\r\n  b\n"),
        ("> ```\n> a \n>\n> b\n> ```\n", "a \n\nb\n"),
        ("1. ```\n   a\0\u200b\n", "a\0\u200b\n"),
        ("```\n\n```", "\n"),
        ("```\n```", ""),
        ("~~~~\n```\n~~~\n~~~~~  \n", "```\n~~~\n"),
        ("```\nno end", "no end"),
    ],
)
def test_code_of_fences_wherever_they_stand(text: str, code: str) -> None:
    assert [fence.code for fence in document(text).fences] == [code]


def test_fences_are_numbered_in_order_and_labelled() -> None:
    made = document("```py title=a.py\nx\n```\n- ~~~\n  y\n  ~~~\n\n    indented\n\n> ```c\n> z\n> ```\n")
    labels = [made.lines(40)[fence.first_line].text.strip(" │•") for fence in made.fences]
    assert labels == ["py title=a.py  1", "code  2", "c  3"]
    assert [fence.language for fence in made.fences] == ["py", "", "c"]
    assert copied(made.lines(40)[:2]) == "\nx\n"


def styles(lines: list[Line], text: str) -> list[str]:
    return [run.style for line in lines for run in line.runs if text in run.text]


def test_python_is_highlighted_with_its_strings_over_lines() -> None:
    lines = list(document(fenced('def f():\n    """doc\n    return x"""\n    return 1  # note\n')).lines(60))
    assert styles(lines, "def") == ["fence syntax.keyword"]
    assert styles(lines, "return x") == ["fence syntax.string"]
    assert styles(lines, "return")[1] == "fence syntax.keyword"
    assert styles(lines, "# note") == ["fence syntax.comment"]


@pytest.mark.parametrize("language", ["c", "js", "go", "rust", "css", "php"])
def test_comments_go_on_over_lines(language: str) -> None:
    code = "<?php\n" if language == "php" else ""
    lines = list(
        document(fenced(code + "x; /* one\n * return two\n three */ y;\nreturn z; // q\n", language)).lines(60)
    )
    assert styles(lines, "return two") == ["fence syntax.comment"]
    assert styles(lines, "three */") == ["fence syntax.comment"]
    assert "comment" not in " ".join(styles(lines, "return z") + styles(lines, "y;"))


@pytest.mark.parametrize(
    "language", ["nonsense", "", "text", "python:src/x.py", "{.python}", "PYTHON", "\x1b[31m", "../x"]
)
def test_names_of_languages(language: str) -> None:
    assert (lexer_for(language) is not None) == ("python" in language.lower())


def test_only_fences_that_ended_are_read_again_and_only_once() -> None:
    code = "x = '''a\nb'''\n"
    made = MarkdownDocument()
    made.append("```python\n" + code)
    assert made.unsettled() == []
    made.append("```\n- ```c\n  a\n  ```\n")
    made.finish()
    assert [(job.number, job.language, list(job.lines)) for job in made.unsettled()] == [
        (1, "python", ["x = '''a", "b'''"]),
        (2, "c", ["a"]),
    ]
    for job in made.unsettled():
        made.settle(job.number, exact(job.language, job.lines))
    assert made.unsettled() == []


def test_exact_highlighting_replaces_what_was_made_line_by_line() -> None:
    """A here-document of a shell, which its lexer sees as a whole only, read in a thread of its own."""
    made = document("before\n\n" + fenced("cat <<EOF\nif then\nEOF\n", "sh"))
    before = list(made.lines(60))
    found: list[list[tuple[StyledRun, ...]] | None] = []
    (job,) = made.unsettled()
    thread = threading.Thread(target=lambda: found.append(exact(job.language, job.lines)))
    thread.start()
    thread.join()
    made.settle(job.number, found[0])
    after = list(made.lines(60))
    assert [line.text for line in after] == [line.text for line in before]
    assert styles(before, "if") == ["fence syntax.keyword"]
    assert styles(after, "if") == ["fence syntax.string"]
    assert made.changed_from() == 3  # before, blank, label


@pytest.mark.parametrize("runs", [None, [], [(StyledRun("other"),)], [(StyledRun("x"),)] * 9])
def test_highlighting_of_another_text_is_not_taken(runs: list[tuple[StyledRun, ...]] | None) -> None:
    made = document(fenced("x = 1\ny = 2\n"))
    before = list(made.lines(60))
    made.settle(1, runs)
    assert list(made.lines(60)) == before


def test_a_fence_read_again_goes_on_from_the_line_that_changed() -> None:
    read, fresh = Code("python", 1), Code("python", 1)
    read.become(["x\n", "'''\n", "def\n", ""])
    read.lines(40)
    for code in (read, fresh):
        code.become(["x\n", "y\n", "def\n", "return"])
    assert list(read.lines(40)) == list(fresh.lines(40))
    assert read.code == "x\ny\ndef\nreturn"


def test_a_very_long_fence_is_plain_far_down() -> None:
    made = document(fenced("return\n" * (LONGEST + 1)))
    shown = {number: line.runs[-1].style for number, line in enumerate(made.lines(40)) if "return" in line.text}
    assert shown[LONGEST] == "fence syntax.keyword"
    assert shown[LONGEST + 1] == "fence"
    assert made.unsettled() == []
