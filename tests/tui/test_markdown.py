"""Markdown, tables, thoughts and code as lines: no text is lost, and code is kept byte for byte."""

import re
import statistics
import time
import tracemalloc

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

from localdflash.text.sanitize import sanitize
from localdflash.tui.fence import Code
from localdflash.tui.inline import MAX_MARKUP_CHARS, inline, link_target
from localdflash.tui.markdown import MarkdownDocument
from localdflash.tui.painting import LOOKS
from localdflash.tui.styled_lines import Line, StyledRun, wrap
from tests.tui.markdown_samples import chunks, copied, document, rows, sizes, texts

# A line that begins another kind of block. If the next line could make it a table, markdown-it reads a table; GitHub
# and MarkdownDocument do not.
_BEGINS = re.compile(r"\s*([`~#>*+-]|\d+[.)])")


@settings(max_examples=100, deadline=None)
@given(texts)
def test_no_text_is_lost(text: str) -> None:
    text = "start\n\n" + sanitize(text).replace("<br>", " ")  # in a cell, <br> makes lines side by side
    screen_text = iter("".join(line.text for line in document(text).lines(10_000)))
    for character in _content(text):
        assert character in screen_text, f"{character!r} is missing or out of order"


def _content(text: str) -> str:
    """Return the content that markdown-it finds."""
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
def test_lines_fit_the_width(text: str, width: int, plain: bool) -> None:
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


def test_lists_hang_and_keep_their_numbers() -> None:
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


def test_styles_nest() -> None:
    assert inline("a **b *c* `d`** ~~e~~") == (
        StyledRun("a "),
        StyledRun("b ", "strong"),
        StyledRun("c", "strong emphasis"),
        StyledRun(" ", "strong"),
        StyledRun("d", "strong code"),
        StyledRun(" "),
        StyledRun("e", "strike"),
    )


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "https:"])
def test_unsafe_urls_are_not_links(url: str) -> None:
    runs = inline(f"[text](<{url}>)")
    assert {run.link for run in runs} == {""}
    assert "".join(run.text for run in runs) == ("text" + (f" ({url})" if url else ""))


def test_url_with_invisible_characters_is_not_a_link() -> None:
    assert link_target("https://x.org/a\u202eb") == ""
    assert link_target("https://x.org/a b") == ""
    assert link_target("HTTPS://x.org") == "HTTPS://x.org"


def test_urls_in_text_are_links_without_final_punctuation() -> None:
    assert inline("see (https://x.org/a_b?c=1).") == (
        StyledRun("see ("),
        StyledRun("https://x.org/a_b?c=1", "link", "https://x.org/a_b?c=1"),
        StyledRun(")."),
    )


def test_entities_are_decoded_and_sanitised() -> None:
    assert inline("&lt;&copy;&#8238;&#10;x") == (StyledRun("<©⟦U+202E⟧ x"),)


def test_overlong_markup_is_shown_as_typed() -> None:
    long = "**a** " * (MAX_MARKUP_CHARS // 5)
    assert inline(long) == (StyledRun(long),)
    assert inline("[" * 500) == (StyledRun("[" * 500),)
    assert inline("[\n   ]" * 500) == (StyledRun("[\n]" * 500),)


@pytest.mark.parametrize("before", ["```json\n", ""])
def test_versions_of_a_growing_long_line_are_not_kept(before: str) -> None:
    streamed = MarkdownDocument()
    streamed.append(before + "word " * (MAX_MARKUP_CHARS // 4))
    streamed.lines(80)
    tracemalloc.start()
    try:
        for _ in range(100):
            streamed.append("word ")
            streamed.lines(80)
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()


# Wrapping

_TEXT = st.text("ab  \n日本e\u0301❤\ufe0f😀é—", max_size=60)
_RUNS = st.lists(st.builds(StyledRun, _TEXT.filter(bool), st.sampled_from(("", "strong"))), max_size=5)


@settings(max_examples=100, deadline=None)
@given(_RUNS, st.integers(1, 20), st.booleans())
def test_wrapped_rows_fit_and_copy_to_the_text(runs: list[StyledRun], width: int, words: bool) -> None:
    lines = wrap(runs, width, words=words)
    text = "".join(run.text for run in runs)
    assert copied(lines) == text + "\n"
    assert all(cell_len(line.text) <= max(width, 2) for line in lines)
    styled = "".join(run.style[:1] * len(run.text) or " " * len(run.text) for line in lines for run in line.runs)
    assert len(styled) == sum(len(line.text) for line in lines)


TABLE = "| Name | Size | Note |\n|:--|--:|:-:|\n| a | 1 | x |\n| long | 1000 | some **words** here |\n"


def test_table_columns_are_aligned() -> None:
    assert rows(TABLE) == [
        "Name │ Size │      Note",
        "─────┼──────┼────────────────",
        "a    │    1 │        x",
        "long │ 1000 │ some words here",
    ]


def test_narrow_table_has_one_field_per_line() -> None:
    assert rows(TABLE, 20) == [
        "Name: a",
        "Size: 1",
        "Note: x",
        "",
        "Name: long",
        "Size: 1000",
        "Note: some words",
        "here",
    ]


_CELLS = st.lists(st.text("ab 日", max_size=30), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(_CELLS, st.lists(_CELLS, max_size=4), st.integers(1, 80))
def test_every_cell_is_shown_in_every_width(head: list[str], body: list[list[str]], width: int) -> None:
    lines = ["|" + "|".join(row) + "|" for row in (head, ["-"] * len(head), *body)]
    screen_text = document("\n".join(lines)).lines(width)
    assert all(line.width <= max(width, 2) for line in screen_text)
    expected = "".join(head) + "".join("".join(row[: len(head)]) for row in body)
    for character in "ab日":
        assert "".join(line.text for line in screen_text).count(character) >= expected.count(character)


def test_unfolded_thoughts_are_shown_as_typed() -> None:
    made = document("<think>\n*one*\n\ntwo\n</think>Answer")
    made.lines(40)
    made.show_thoughts(True)
    assert [line.text for line in made.lines(40)] == ["▾ Thought for 2 words", "│ *one*", "│ ", "│ two", "", "Answer"]
    assert made.first_changed == 0
    made.show_thoughts(False)
    assert [line.text for line in made.lines(40)] == ["▸ Thought for 2 words", "", "Answer"]


def test_growing_thoughts_show_their_end() -> None:
    made = MarkdownDocument()
    made.append("<think>one\ntwo three")
    assert [line.text for line in made.lines(40)] == ["▸ Thinking… two three"]
    made.append(" four five six")
    assert [line.text for line in made.lines(24)] == ["▸ Thinking… our five six"]
    made.show_thoughts(True)
    assert [line.text for line in made.lines(40)] == ["▾ Thinking…", "│ one", "│ two three four five six"]


@pytest.mark.parametrize("opening", [1, 4, 7])
@pytest.mark.parametrize("closing", [1, 5, 8])
def test_thought_tags_may_be_split(opening: int, closing: int) -> None:
    made = MarkdownDocument()
    screen_text = []
    tag, end = "<think>", "</think>"
    for piece in (" \n" + tag[:opening], tag[opening:] + "a b" + end[:closing], end[closing:] + "done"):
        made.append(piece)
        made.show_thoughts(True)
        screen_text.append([line.text for line in made.lines(40)])
    assert screen_text[0] in ([], ["▾ Thinking…"])
    assert "<" not in "".join(screen_text[1])
    assert screen_text[2] == ["▾ Thought for 2 words", "│ a b", "", "done"]


def test_thought_tag_elsewhere_is_text() -> None:
    assert rows("Use `<think>` here.\n\n<think>x</think>") == ["Use <think> here.", "", "<think>x</think>"]
    assert rows("```\n<think>\n```\n") == ["  code  1", "  <think>"]
    assert rows("<thinking>") == ["<thinking>"]
    assert rows("<thi") == ["<thi"]


def test_unfinished_thoughts_are_kept() -> None:
    made = MarkdownDocument()
    made.append("<think>one two</thi")
    made.finish()
    made.show_thoughts(True)
    assert [line.text for line in made.lines(40)] == ["▾ Thought for 2 words", "│ one two</thi"]
    made.append("n")
    assert [line.text for line in made.lines(40)] == ["▾ Thinking…", "│ one two"]
    made.append("k>Answer")
    assert [line.text for line in made.lines(40)] == ["▾ Thought for 2 words", "│ one two", "", "Answer"]


def test_empty_thoughts_are_not_shown() -> None:
    assert rows("<think>\n\n</think>\n\nAnswer") == ["Answer"]


_CODE = st.text(st.sampled_from("ab (){}'\"#/*\n\t\r日é\u0301\0\x1b\ud800=:"), max_size=200)
_LANGUAGES = st.sampled_from(("", "python", "js", "c", "rust", "html", "json", "yaml", "diff", "sh", "nonsense"))


def fenced(code: str, language: str = "python") -> str:
    return f"````{language}\n{code}\n````\n"


@settings(max_examples=80, deadline=None)
@given(_CODE, _LANGUAGES, st.integers(1, 60))
def test_code_is_kept_exactly_and_copied_sanitised(code: str, language: str, width: int) -> None:
    made = document(fenced(code, language))
    (fence,) = made.fences()
    assert (fence.code, fence.closed, fence.language) == (code + "\n", True, language)
    screen_text = copied(made.lines(width)[1:])
    assert screen_text == sanitize(code + "\n").expandtabs(4)


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
def test_code_of_fences_inside_other_blocks(text: str, code: str) -> None:
    assert [fence.code for fence in document(text).fences()] == [code]


def styles(lines: list[Line], text: str) -> list[str]:
    return [run.style for line in lines for run in line.runs if text in run.text]


@pytest.mark.parametrize("language", ["c", "js", "go", "rust", "css", "php"])
def test_multiline_comments_are_highlighted(language: str) -> None:
    code = "<?php\n" if language == "php" else ""
    lines = list(
        document(fenced(code + "x; /* one\n * return two\n three */ y;\nreturn z; // q\n", language)).lines(60)
    )
    assert styles(lines, "return two") == ["fence syntax.comment"]
    assert styles(lines, "three */") == ["fence syntax.comment"]
    assert "comment" not in " ".join(styles(lines, "return z") + styles(lines, "y;"))


def test_changed_fence_equals_a_fresh_one() -> None:
    read, fresh = Code("python", 1), Code("python", 1)
    read.set_lines(["x\n", "'''\n", "def\n", ""])
    read.lines(40)
    for code in (read, fresh):
        code.set_lines(["x\n", "y\n", "def\n", "return"])
    assert list(read.lines(40)) == list(fresh.lines(40))
    assert read.code == "x\ny\ndef\nreturn"


widths = st.sampled_from((1, 5, 10, 11, 24, 60, 100))


@settings(max_examples=120, deadline=None)
@given(texts, sizes, widths)
@example("- a\n- b | c\n- | -\n", [1], 60)
@example("2. a\n3. b | c\n---|---\n", [1], 60)
@example("para\n| a |\n| - x\n", [1], 60)
@example("para\n#\n", [5, 1, 1], 60)
@example("```\na\n```x\nb\n", [9, 1], 60)
@example("```x|y\n-|-\n", [7, 1], 60)
@example("- a\n\n  ```\n  b\n- c\n", [3], 60)
@example("```\r````crlf line\r", [4], 60)
def test_any_chunking_ends_in_the_same_lines(text: str, sizes: list[int], width: int) -> None:
    """The examples are lines whose meaning is changed by the next line or by the rest of the line."""
    growing = MarkdownDocument()
    seen: list[object] = []
    for piece in chunks(text, sizes):
        growing.append(piece)
        lines = growing.lines(width)
        changed = growing.first_changed
        assert list(lines[:changed]) == seen[:changed]
        seen = list(lines)
    growing.finish()
    whole = document(text)
    assert list(growing.lines(width)) == list(whole.lines(width))
    assert growing.first_changed <= len(growing.lines(width))
    assert [one.code for one in growing.fences()] == [one.code for one in whole.fences()]
    assert growing.source == whole.source == text


TEXTS = {
    "5 000 pipes": "|" * 5000 + "\n" + "|-" * 5000 + "|\n" + "|" * 5000,
    "500 quotes, one more in each line": "".join("> " * depth + "deep\n" for depth in range(500)),
    "500 lists": "".join("  " * depth + "- deep\n" for depth in range(500)),
    "40 000 wide characters": "日本" * 20_000,
    "2 000 items": "- item **one**\n" * 2_000,
    "brackets": "[" * 7_999,
    "stars": "*a **b " * 1_100,
    "closing brackets": "[a" * 1_999 + "]" * 1_999,
    "entities": "&" * 7_999,
    "ticks never closed": "````\n" + "```\n" * 2_000,
    "emoji selectors": "\ufe0f" * 4_000 + "\u0301" * 4_000,
}


LAYOUT_SECONDS = 20  # of processor time; what grows faster than the square of a text takes minutes


@pytest.mark.parametrize("name", TEXTS)
def test_pathological_texts_are_laid_out(name: str) -> None:
    text = TEXTS[name]
    began = time.process_time()
    made = document(text)
    screen_text = made.lines(80)
    assert time.process_time() - began < LAYOUT_SECONDS
    assert all(line.width <= 80 for line in screen_text)
    words = "".join(line.text for line in screen_text)
    if "deep" in text:
        assert words.count("deep") == text.count("deep")
    began = time.process_time()
    made.lines(20)
    assert time.process_time() - began < LAYOUT_SECONDS


def test_long_fence_streams_at_constant_cost() -> None:
    source = "".join(f"def function_{n}(a: int) -> str:\n    return f'{{a}} {n}'  # {n * n}\n\n\n" for n in range(250))
    growing = MarkdownDocument()
    growing.append("```python\n")
    growing.lines(100)
    times = []
    for piece in chunks(source, [53]):
        began = time.process_time()
        growing.append(piece)
        growing.lines(100)
        times.append(time.process_time() - began)
    growing.finish()
    assert len(growing.lines(100)) == 1_001
    part = len(times) // 10
    assert statistics.median(times[-part:]) < 4 * statistics.median(times[part : 2 * part])
    assert growing.fences()[0].code == source
