"""Classify a line by its beginning: a further branch, an end, a label, a link of a chain."""

import re

_WORD = re.compile(r"\s*(?:\}\s*)?(\w*)")
_BRACES = frozenset({"else", "catch", "finally"})
_CLAUSES = {
    "python": frozenset({"elif", "else", "except", "finally"}),
    "lua": frozenset({"elseif", "else"}),
    "go": frozenset({"else"}),
}
_ENDS = {"lua": frozenset({"end", "until"})}
_LEAVES = frozenset({"return", "raise", "break", "continue"})
_LABELS = frozenset({"case", "default", "public", "private", "protected"})
_LINKED = frozenset({"c", "cpp", "java", "javascript", "rust", "tsx", "typescript"})
_LINKS = ".?:|&{"


def has_block_braces(language: str) -> bool:
    """Return whether braces enclose blocks in this language, not only data."""
    return language not in {"python", "lua"}


def first_word(line: str) -> str:
    """Return the word that a line begins with, or that follows its closing brace; "" if it begins with another sign."""
    found = _WORD.match(line)
    return found[1] if found else ""


def goes_on(language: str, line: str) -> bool:
    """Return whether a line is a further branch of the statement above it."""
    return first_word(line) in _CLAUSES.get(language, _BRACES)


def ends(language: str, line: str) -> bool:
    """Return whether a line ends a block with a word."""
    return first_word(line) in _ENDS.get(language, ())


def is_label(language: str, line: str) -> bool:
    """Return whether a line may be indented as little as the one that begins its block."""
    return has_block_braces(language) and first_word(line) in _LABELS


def leaves(language: str, line: str) -> bool:
    """Return whether nothing can follow a line in its block; only in languages where indentation makes blocks."""
    return language == "python" and first_word(line) in _LEAVES


def may_be_linked(language: str, line: str) -> bool:
    """Return whether the statement of a complete line may continue below it: as a chain of calls, with a brace or a
    branch.
    """
    return language in _LINKED and not line.rstrip().endswith(";")


def is_link(char: str) -> bool:
    """Return whether a line that begins with this character continues the one above it."""
    return char in _LINKS
