"""Pieces of Markdown that are easy to get wrong, one by one and together."""

import random

FRAGMENTS = (
    "Some text that goes on\nover two lines.\n",
    "para without end",
    "\n",
    "\n\n",
    "\r\n",
    " ",
    "# Heading\n",
    "#\n",
    "#tag is text\n",
    "Setext\n===\n",
    "Setext two\n---\n",
    "---\n",
    "***\n",
    "- one\n- two\n",
    "- one\n\n- loose\n",
    "-\n  late\n",
    "- a\n  - b\n    - c\n\n      deep\n",
    "1. one\n2. two\n",
    "7) seven\n8) eight\n",
    "1. a\n10. b\n   c\n",
    "- [ ] open\n- [x] done\n",
    "- ```py\n  x = 1\n  ```\n- after\n",
    "1. ~~~\n   open in a list\n",
    "> quote\nlazy\n",
    "> > deep\n> back\n",
    "> - list\n>   more\n>\n> ```\n> code\n> ```\n",
    "```python\ndef f():\n    return 1\n```\n",
    "```\nno end\n",
    "````md\n```py\nx\n```\n````\n",
    "~~~ text\n```\n~~~\n",
    "  ```js\n  indented\n\ttab\n  ```\n",
    "``` not `a fence\n",
    "```",
    "``",
    "`",
    "    indented code\n\n    more\n",
    "| a | b |\n|---|--:|\n| 1 | 2 |\n",
    "a | b\n--|--\n1 | 2 | 3\n",
    "| - |\n",
    "- a | b\n---|---\n",
    "1. a | b\n---|---\n",
    "``` a | b\n---|---\n",
    "# a | b\n---|---\n",
    "<div>\n<b>html</b>\n</div>\n",
    "<!-- open\n",
    "<think>thought</think>",
    "<think>",
    "</think>",
    "`<think>`",
    "**bold *both* bold** ~~gone~~ `code`\n",
    "**open\n",
    "[text](http://x.org/a_b) <https://y.org> https://z.org/q.\n",
    "[ref]\n\n[ref]: http://x.org\n",
    "![alt](http://x.org/i.png)\n",
    "hard  \nbreak\\\nagain<br>html\n",
    "crlf line\r\nand more\r\n",
    "```\r\ncrlf code\r\n```\r\n",
    "lone\rreturn\n",
    "\ttab\tinside\n",
    "日本語のテキスト、 wide\n",
    "e\u0301 combining \u0301\n",
    "👩\u200d💻 zwj ❤\ufe0f\n",
    "nul \0 esc \x1b[31m bell \a c1 \x9b\n",
    "\ud800 lone \udfff\n",
    "bidi \u202e zero \u200b\n",
    "&amp; &#8238; &#10; &copy;\n",
    "x" * 60 + "\n",
    "\u00a0\n",
    "\x0b\x0c\n",
    "+ plus\n* star\n",
    "2. two interrupts not\n",
    "word\n-",
    "=",
    "|",
)


def text(source: random.Random, most: int = 12) -> str:
    """Fragments after each other, mostly whole."""
    pieces = source.choices(FRAGMENTS, k=source.randint(1, most))
    return "".join(piece[: source.randint(0, len(piece))] if source.random() < 0.1 else piece for piece in pieces)


def chunks(source: random.Random, whole: str) -> list[str]:
    """The text in pieces: characters, tokens or bursts."""
    longest = source.choice((1, 3, 8, 40, 400))
    pieces, at = [], 0
    while at < len(whole):
        size = source.randint(1, longest)
        pieces.append(whole[at : at + size])
        at += size
    return pieces
