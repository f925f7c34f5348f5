"""What an editor closed by itself: the brackets and quotes between the cursor and the end of its line.

`foo(|)` is to everything here as `foo(|`: an answer closes what is open and may go on, and what is typed along stays
the same text whether or not the editor closed a bracket meanwhile. An item that closes them again replaces them; in
front of any other they stay.
"""

import re

from localdflash.code.fim.brackets import CLOSERS, Brackets

PAIRS = ("()", "[]", "{}", '""', "''", "``")
_CLOSERS = re.compile(r"[)\]}\"'`]+(?=[ \t]*\Z)")


def closed_after(language: str, line: str, rest: str) -> str:
    """The closers after a cursor between `line` and `rest`, if they close what the line has opened, and that alone."""
    found = _CLOSERS.match(rest)
    if not found:
        return ""
    brackets, left = _read(language, line), found[0]
    while left:
        quote = brackets.inside
        if quote and not left.startswith(quote):
            return ""
        if not quote and not (brackets.stack and left[0] in CLOSERS and brackets.stack[-1].is_closed_by(left[0])):
            return ""
        closer = quote or left[0]
        brackets.feed(closer)
        left = left[len(closer) :]
    return found[0]


def closes_again(language: str, line: str, closed: str, text: str) -> bool:
    """Whether a text behind `line` closes all that was closed, whatever it opens then."""
    read, depth = _read(language, line), len(_read(language, line + closed).stack)
    for char in text:
        read.feed(char)
        if len(read.stack) <= depth and read.in_code:
            return True
    return False


def still_closed(middle: str, typed: str, closed: str) -> tuple[str, str]:
    """What is typed, and what is closed behind it, in a text that was `typed + closed` before a key.

    A pair that comes behind what was typed is one that the editor closed.
    """
    text = middle.removesuffix(closed)
    if text == middle:
        closed = ""
    if text.startswith(typed) and text.removeprefix(typed) in PAIRS:
        return text[:-1], text[-1] + closed
    return text, closed


def _read(language: str, line: str) -> Brackets:
    brackets = Brackets(language)
    brackets.feed(line)
    return brackets
