"""Classify a line by its first word: a branch, an end, a label, a jump."""

import re

_FIRST_WORD = re.compile(r"\s*(?:\}\s*)?(\w*)")
_BRACE_BRANCHES = {"else", "catch", "finally"}
_BRANCHES = {"python": {"elif", "else", "except", "finally"}, "lua": {"elseif", "else"}, "go": {"else"}}
_LABELS = {"case", "default", "public", "private", "protected"}
_CHAINING = {"c", "cpp", "java", "javascript", "rust", "tsx", "typescript"}
CHAIN_SIGNS = ".?:|&{"  # a line that begins with one continues the line above


def has_block_braces(language: str) -> bool:
    """Return whether braces enclose blocks in this language, not only data."""
    return language not in {"python", "lua"}


def _first_word(line: str) -> str:
    """Return the word that a line begins with, or that follows its closing brace; "" before another sign."""
    found = _FIRST_WORD.match(line)
    return found[1] if found else ""


def is_branch(language: str, line: str) -> bool:
    """Return whether a line is a further branch of the statement above it."""
    return _first_word(line) in _BRANCHES.get(language, _BRACE_BRANCHES)


def is_end(language: str, line: str) -> bool:
    """Return whether a line ends a block with a word."""
    return language == "lua" and _first_word(line) in {"end", "until"}


def is_label(language: str, line: str) -> bool:
    """Return whether a line may be indented as little as the one that begins its block."""
    return has_block_braces(language) and _first_word(line) in _LABELS


def is_jump(language: str, line: str) -> bool:
    """Return whether nothing can follow a line in its block."""
    return language == "python" and _first_word(line) in {"return", "raise", "break", "continue"}


def may_continue_below(language: str, line: str) -> bool:
    """Return whether the next line may continue a complete statement: as a chain of calls, a brace or a branch."""
    return language in _CHAINING and not line.rstrip().endswith(";")
