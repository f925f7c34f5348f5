"""Classify a line of code by its first word: branch (`else`), end (`end`), label (`case`), jump (`return`)."""

import re

_FIRST_WORD = re.compile(r"\s*(?:\}\s*)?(\w*)")
_BRACE_BRANCHES = {"else", "catch", "finally"}
_BRANCHES = {"python": {"elif", "else", "except", "finally"}, "lua": {"elseif", "else"}, "go": {"else"}}
_LABELS = {"case", "default", "public", "private", "protected"}
_CHAINING = {"c", "cpp", "java", "javascript", "rust", "tsx", "typescript"}
CHAIN_SIGNS = ".?:|&{+,"  # a line that begins with one of these characters continues the line above


def has_block_braces(language: str) -> bool:
    """Return whether braces enclose blocks in this language, not only data."""
    return language not in {"python", "lua"}


def _first_word(line: str) -> str:
    """Return the word that a line begins with, after a closing brace if any; "" if the line begins otherwise."""
    match = _FIRST_WORD.match(line)
    return match[1] if match else ""


def is_branch(language: str, line: str) -> bool:
    """Return whether a line is a further branch of the statement above it."""
    return _first_word(line) in _BRANCHES.get(language, _BRACE_BRANCHES)


def is_end(language: str, line: str) -> bool:
    """Return whether a line ends a block with a keyword, as in Lua."""
    return language == "lua" and _first_word(line) in {"end", "until"}


def is_label(language: str, line: str) -> bool:
    """Return whether a line is a label, which may be indented as little as the line that begins its block."""
    return has_block_braces(language) and _first_word(line) in _LABELS


def is_jump(language: str, line: str) -> bool:
    """Return whether a line leaves its block, so that lines after it are unreachable. Only for Python."""
    return language == "python" and _first_word(line) in {"return", "raise", "break", "continue"}


def may_continue_below(language: str, line: str) -> bool:
    """Return whether the line after a complete statement may continue it: a call chain, a brace or a branch."""
    return language in _CHAINING and not line.rstrip().endswith(";")
