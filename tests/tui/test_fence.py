"""Code in a MarkdownDocument: every byte kept, highlighted as it comes, wrapped and never cut."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pygments.lexers import get_lexer_by_name

from localdflash.text.sanitize import sanitize
from localdflash.tui import highlight
from localdflash.tui.fence import LONGEST, Code
from localdflash.tui.highlight import exact, lexer_for
from localdflash.tui.markdown import MarkdownDocument
from localdflash.tui.styled_lines import Line, StyledRun
from tests.tui.markdown_samples import copied, document, rows

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


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("```\na\n```", True),
        ("```\na\n", False),
        ("- ```\n  a\n  ```", True),
        ("- ```\n  a\n", False),
        ("- ```\n  ```\n", True),
        ("- ```\n", False),
        ("> ```\n> a\n", False),
        ("```\n    ```\n", False),
        ("```\n``` x\n", False),
    ],
)
def test_whether_it_has_an_end(text: str, closed: bool) -> None:
    assert [fence.closed for fence in document(text).fences] == [closed]


def test_fences_are_numbered_in_order_and_labelled() -> None:
    made = document("```py title=a.py\nx\n```\n- ~~~\n  y\n  ~~~\n\n    indented\n\n> ```c\n> z\n> ```\n")
    labels = [made.lines(40)[fence.first_line].text.strip(" │•") for fence in made.fences]
    assert labels == ["py title=a.py  1", "code  2", "c  3"]
    assert [fence.language for fence in made.fences] == ["py", "", "c"]
    assert copied(made.lines(40)[:2]) == "\nx\n"


def test_a_long_label_is_shortened_and_a_long_line_is_not() -> None:
    shown = rows("```" + "word " * 9 + "\n" + "x" * 30 + "\n```", 20)
    assert shown == ["  word word word wo…", "  " + "x" * 18, "  " + "x" * 12]


@pytest.mark.parametrize(("width", "shown"), [(12, ["  one two th", "  ree"]), (6, ["one tw", "o thre", "e"])])
def test_code_is_cut_where_the_width_ends(width: int, shown: list[str]) -> None:
    assert rows("```\none two three\n```", width)[1:] == shown


def styles(lines: list[Line], text: str) -> list[str]:
    return [run.style for line in lines for run in line.runs if text in run.text]


def test_python_is_highlighted_with_its_strings_over_lines() -> None:
    lines = list(document(fenced('def f():\n    """doc\n    return x"""\n    return 1  # note\n')).lines(60))
    assert styles(lines, "def") == ["fence syntax.keyword"]
    assert styles(lines, "return x") == ["fence syntax.string"]
    assert styles(lines, "return")[1] == "fence syntax.keyword"
    assert styles(lines, "# note") == ["fence syntax.comment"]


@pytest.mark.parametrize("language", ["c", "cpp", "java", "js", "ts", "go", "rust", "css", "kotlin", "csharp", "php"])
def test_comments_go_on_over_lines(language: str) -> None:
    code = "<?php\n" if language == "php" else ""
    lines = list(
        document(fenced(code + "x; /* one\n * return two\n three */ y;\nreturn z; // q\n", language)).lines(60)
    )
    assert styles(lines, "return two") == ["fence syntax.comment"]
    assert styles(lines, "three */") == ["fence syntax.comment"]
    assert "comment" not in " ".join(styles(lines, "return z") + styles(lines, "y;"))


def test_what_looks_like_a_comment_in_a_string_or_a_shell_is_none() -> None:
    for language, code in (
        ("c", 'char *s = "/*";\nint x;\n'),
        ("sh", "ls /*\nif true; then\n"),
        ("js", "'/*'\nlet x\n"),
    ):
        lines = list(document(fenced(code, language)).lines(60))
        assert "comment" not in " ".join(styles(lines, "x") + styles(lines, "if") + styles(lines, "let"))


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


def test_a_fence_inside_a_list_is_settled_too() -> None:
    made = document("- ```sh\n  cat <<EOF\n  if then\n  EOF\n  ```\n")
    assert styles(list(made.lines(60)), "if") == ["fence syntax.keyword"]
    made.settle(1, exact("sh", made.unsettled()[0].lines))
    assert styles(list(made.lines(60)), "if") == ["fence syntax.string"]


@pytest.mark.parametrize("runs", [None, [], [(StyledRun("other"),)], [(StyledRun("x"),)] * 9])
def test_highlighting_of_another_text_is_not_taken(runs: list[tuple[StyledRun, ...]] | None) -> None:
    made = document(fenced("x = 1\ny = 2\n"))
    before = list(made.lines(60))
    made.settle(1, runs)
    assert list(made.lines(60)) == before


@pytest.mark.parametrize(
    "language", ["python", "js", "c", "rust", "yaml", "json", "ruby", "haskell", "html+jinja", "perl6"]
)
def test_whole_and_line_by_line_show_the_same_text(language: str) -> None:
    code = "a = [1, 'two']\n\tif (x) { y /* z */ } # q\n- k: |\n  <b>v</b>\n" * 3
    found = exact(language, code.split("\n"))
    assert found is not None
    assert ["".join(run.text for run in line) for line in found] == code.expandtabs(4).split("\n")


def test_a_diff_is_coloured_to_its_last_line() -> None:
    found = exact("diff", ["@@ -1 +1 @@", "-a", "+b"])
    assert found is not None
    assert [line[0].style for line in found] == [
        "fence syntax.heading",
        "fence syntax.deleted",
        "fence syntax.inserted",
    ]


def test_a_lexer_that_fails_leaves_the_text_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    lexer = type(get_lexer_by_name("python"))
    highlight._highlighted.cache_clear()

    def fail(*_: object, **__: object) -> None:
        raise RecursionError

    monkeypatch.setattr(lexer, "get_tokens_unprocessed", fail)
    monkeypatch.setattr("pygments.lexer.ExtendedRegexLexer.get_tokens_unprocessed", fail)
    assert rows(fenced("def f(): pass")) == ["  python  1", "  def f(): pass"]
    assert exact("python", ["def"]) is None
    highlight._highlighted.cache_clear()


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
