"""Split the source of a small language into tokens."""

import re
from dataclasses import dataclass

KEYWORDS = {"let", "if", "else", "while", "return", "true", "false"}

TOKEN_TYPES = [
    ("NUMBER", r"\d+(?:\.\d+)?"),
    ("STRING", r'"(?:[^"\\\n]|\\.)*"'),
    ("NAME", r"[A-Za-z_]\w*"),
    ("OPERATOR", r"==|!=|<=|>=|[-+*/%<>=(){},;]"),
    ("NEWLINE", r"\n"),
    ("SKIP", r"[ \r]+|#[^\n]*"),
    ("ERROR", r"."),
]
MASTER = re.compile("|".join(f"(?P<{name}>{regex})" for name, regex in TOKEN_TYPES))


@dataclass
class Token:
    """A piece of source text with its position."""

    kind: str
    text: str
    line: int
    column: int


class LexerError(SyntaxError):
    """The source contains a character that starts no token."""


def tokenize(source):
    """Yield the tokens of ``source``, without blanks and comments."""
    line = 1
    line_start = 0
    for match in MASTER.finditer(source):
        kind = match.lastgroup
        text = match.group()
        column = match.start() - line_start + 1
        if kind == "NEWLINE":
            line += 1
            line_start = match.end()
        elif kind == "ERROR":
            raise LexerError(f"unexpected {text!r} at {line}:{column}")
        elif kind != "SKIP":
            if text in KEYWORDS:
                kind = "KEYWORD"
            yield Token(kind, text, line, column)


def unquote(token):
    """Return the value of a string token with its escapes resolved."""
    escapes = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
    result = []
    characters = iter(token.text[1:-1])
    for character in characters:
        if character == "\\":
            character = escapes.get(next(characters), "?")
        result.append(character)
    return "".join(result)


def count_kinds(source):
    """Return how often each kind of token occurs in ``source``."""
    counts = {}
    for token in tokenize(source):
        counts[token.kind] = counts.get(token.kind, 0) + 1
    return counts
