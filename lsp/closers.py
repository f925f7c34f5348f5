"""Closers: brackets and quotes that an editor adds after the cursor. `foo(|)` is treated as `foo(|`."""

import re

from localdflash.code.fim.brackets import Brackets

_PAIRS = ("()", "[]", "{}", '""', "''", "``")
_CLOSERS = re.compile(r"[)\]}\"'`]+(?=[ \t]*\Z)")


def closers_after(language: str, line: str, rest: str) -> str:
    """Return the closers after a cursor between `line` and `rest`; "" unless they exactly close the line's brackets."""
    found = _CLOSERS.match(rest)
    if not found:
        return ""
    brackets, left = _read(language, line), found[0]
    while left:
        quote = brackets.terminator
        if quote and not left.startswith(quote):
            return ""
        if not quote and not (brackets.stack and brackets.stack[-1].closer == left[0]):
            return ""
        closer = quote or left[0]
        brackets.feed(closer)
        left = left[len(closer) :]
    return found[0]


def closes_again(language: str, line: str, closers: str, text: str) -> bool:
    """Return whether `text` after `line` closes all brackets and quotes of `closers`, even if it opens more later."""
    brackets, depth = _read(language, line), len(_read(language, line + closers).stack)
    for char in text:
        brackets.feed(char)
        if len(brackets.stack) <= depth and not brackets.terminator:
            return True
    return False


def split_closers(middle: str, typed: str, closers: str) -> tuple[str, str]:
    """Split `middle`, which was `typed + closers` before the last change, into typed text and the editor's closers."""
    text = middle.removesuffix(closers)
    if text == middle:
        closers = ""
    if text.startswith(typed) and text.removeprefix(typed) in _PAIRS:
        return text[:-1], text[-1] + closers
    return text, closers


def _read(language: str, line: str) -> Brackets:
    brackets = Brackets(language)
    brackets.feed(line)
    return brackets
