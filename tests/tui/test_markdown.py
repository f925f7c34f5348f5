"""How Markdown looks as lines, and that nothing of it gets lost on the way."""

import re

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

from localdflash.text.sanitize import sanitize
from localdflash.tui.painting import LOOKS
from tests.tui.markdown_samples import copied, document, rows, texts

# A line that begins a block of another kind. Where the next line makes a table of it, markdown-it sees a table; GitHub
# and Documents do not.
_BEGINS = re.compile(r"\s*([`~#>*+-]|\d+[.)])")


@settings(max_examples=100, deadline=None)
@given(texts)
def test_no_text_is_lost(text: str) -> None:
    text = "start\n\n" + sanitize(text).replace("<br>", " ")  # which in a cell makes lines side by side
    shown = iter("".join(line.text for line in document(text).lines(10_000)))
    for character in _content(text):
        assert character in shown, f"{character!r} is missing or in another place"


def _content(text: str) -> str:
    """What markdown-it itself sees as content."""
    reference = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")
    found = ""
    for token in reference.parse(text):
        if token.type in {"fence", "code_block"}:
            found += token.content
        if token.type == "table_open":
            assume(token.map is None or not _BEGINS.match(text.split("\n")[token.map[0]]))
        for child in token.children or ():
            found += child.content
    return "".join(character for character in sanitize(found) if not character.isspace())


@settings(max_examples=100, deadline=None)
@given(texts, st.integers(1, 60), st.booleans())
def test_no_line_is_wider_than_asked(text: str, width: int, plain: bool) -> None:
    for line in document(text, plain=plain).lines(width):
        assert line.width <= max(width, 2)  # a wide character takes two cells
        assert line.width == cell_len(line.text)
        assert line.decoration <= len(line.runs)


@settings(max_examples=60, deadline=None)
@given(texts, st.booleans())
def test_lines_are_safe_and_name_known_styles(text: str, plain: bool) -> None:
    for line in document(text, plain=plain).lines(40):
        assert sanitize(line.text) == line.text
        assert "\n" not in line.text
        assert "\t" not in line.text
        for run in line.runs:
            assert run.text
            assert set(run.style.split()) <= set(LOOKS)


def test_paragraphs_are_wrapped_between_words_and_joined_again() -> None:
    lines = document("one two three\nfour five six seven\n\nnext  \nbreak").lines(12)
    assert [line.text for line in lines] == ["one two", "three four", "five six", "seven", "", "next", "break"]
    assert copied(lines) == "one two three four five six seven\n\nnext\nbreak\n"


def test_lists_hang_and_keep_the_numbers_as_written() -> None:
    assert rows(
        "Text:\n- one two three four\n  - inner\n\n    para\n- [x] done\n- [ ] open\n\n9. nine\n10. ten", 16
    ) == [
        "Text:",
        "• one two three",
        "  four",
        "  • inner",
        "",
        "    para",
        "[x] done",
        "[ ] open",
        "",
        "9. nine",
        "10. ten",
    ]


def test_line_ends_of_windows() -> None:
    text = "# Head\r\n\r\n- one\r\n- two\r\n\r\n| a | b |\r\n|---|---|\r\n| 1 | 2 |\r\n\r\n```py\r\nx\r\n```\r\n"
    assert rows(text) == rows(text.replace("\r", ""))
    assert document(text).fences()[0].code == "x\r\n"
