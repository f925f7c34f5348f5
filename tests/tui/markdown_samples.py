"""Fragments of Markdown that are easy to get wrong, alone or combined."""

from collections.abc import Sequence
from itertools import cycle

from hypothesis import strategies as st

from localdflash.tui.markdown import MarkdownDocument
from localdflash.tui.styled_lines import Line

FRAGMENTS = (
    *("Some text that goes on\nover two lines.\n", "para without end", "\n", "\n\n", "\r\n", " ", "# Heading\n"),
    *("#\n", "#tag is text\n", "Setext\n===\n", "Setext two\n---\n", "---\n", "***\n", "- one\n- two\n"),
    *("- one\n\n- loose\n", "-\n  late\n", "- a\n  - b\n    - c\n\n      deep\n", "1. one\n2. two\n"),
    *("7) seven\n8) eight\n", "1. a\n10. b\n   c\n", "- [ ] open\n- [x] done\n"),
    *("- ```py\n  x = 1\n  ```\n- after\n", "1. ~~~\n   open in a list\n", "> quote\nlazy\n", "> > deep\n> back\n"),
    *("> - list\n>   more\n>\n> ```\n> code\n> ```\n", "```python\ndef f():\n    return 1\n```\n", "```\nno end\n"),
    *("````md\n```py\nx\n```\n````\n", "~~~ text\n```\n~~~\n", "  ```js\n  indented\n\ttab\n  ```\n"),
    *("``` not `a fence\n", "```", "``", "`", "    indented code\n\n    more\n"),
    *("| a | b |\n|---|--:|\n| 1 | 2 |\n", "a | b\n--|--\n1 | 2 | 3\n", "| - |\n", "- a | b\n---|---\n"),
    *("1. a | b\n---|---\n", "``` a | b\n---|---\n", "# a | b\n---|---\n", "<div>\n<b>html</b>\n</div>\n"),
    *("<!-- open\n", "<think>thought</think>", "<think>", "</think>", "`<think>`"),
    *("**bold *both* bold** ~~gone~~ `code`\n", "**open\n"),
    *("[text](http://x.org/a_b) <https://y.org> https://z.org/q.\n", "[ref]\n\n[ref]: http://x.org\n"),
    *("![alt](http://x.org/i.png)\n", "hard  \nbreak\\\nagain<br>html\n", "crlf line\r\nand more\r\n"),
    *("```\r\ncrlf code\r\n```\r\n", "lone\rreturn\n", "\ttab\tinside\n", "日本語のテキスト、 wide\n"),
    *("e\u0301 combining \u0301\n", "👩\u200d💻 zwj ❤\ufe0f\n", "nul \0 esc \x1b[31m bell \a c1 \x9b\n"),
    *("\ud800 lone \udfff\n", "bidi \u202e zero \u200b\n", "&amp; &#8238; &#10; &copy;\n", "x" * 60 + "\n"),
    *("\u00a0\n", "\x0b\x0c\n", "+ plus\n* star\n", "2. two interrupts not\n", "word\n-", "=", "|"),
)


# Texts made of fragments, some truncated, and the sizes of the chunks in which they arrive.
texts = st.lists(
    st.sampled_from(FRAGMENTS) | st.sampled_from(FRAGMENTS).map(lambda piece: piece[:-1]), max_size=12
).map("".join)
sizes = st.lists(st.integers(1, 60), min_size=1, max_size=8)


def chunks(text: str, sizes: list[int]) -> list[str]:
    """Split a text into pieces of these sizes, repeated in a cycle."""
    pieces: list[str] = []
    at = 0
    for size in cycle(sizes):
        if at >= len(text):
            return pieces
        pieces.append(text[at : at + size])
        at += size
    raise AssertionError


def document(text: str, *, plain: bool = False) -> MarkdownDocument:
    """Return a finished document of a text."""
    made = MarkdownDocument(plain=plain)
    made.append(text)
    made.finish()
    return made


def rows(text: str, width: int = 60) -> list[str]:
    """Return the rows of a text."""
    return [line.text for line in document(text).lines(width)]


def copied(lines: Sequence[Line]) -> str:
    """Return the text that copying the lines gives."""
    parts = []
    for line in lines:
        parts += [run.text for run in line.runs[line.decoration :]]
        parts.append(line.ending)
    return "".join(parts)
