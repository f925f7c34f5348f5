"""Highlight code line by line, from the lexer state before each line.

Loading a lexer is slow: in an event loop, code stays plain until another module has loaded `missing_languages`.
"""

import re
from asyncio import _get_running_loop as running_loop
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from localdflash.text.sanitize import sanitize
from localdflash.tui.styled_lines import StyledRun

if TYPE_CHECKING:
    from pygments.lexer import Lexer

MAX_HIGHLIGHTED_CHARS = 500  # per line, because some lexers take quadratic time
MAX_LEXERS = 64
TAB = 4  # cells

# State between two lines: the lexer's stack, and whether a `/*` comment is open, which some lexers forget.
LexerState = tuple[tuple[str, ...], bool]
START: LexerState = (("root",), False)

_NAME = re.compile(r"[\w+#.-]+")
_STYLES = {
    "Token.Keyword.Type": "type",
    "Token.Keyword.Constant": "number",
    "Token.Keyword": "keyword",
    "Token.Literal.String": "string",
    "Token.Literal.Number": "number",
    "Token.Literal": "string",
    "Token.Comment": "comment",
    "Token.Name.Function": "function",
    "Token.Name.Class": "type",
    "Token.Name.Builtin": "function",
    "Token.Name.Exception": "type",
    "Token.Name.Decorator": "function",
    "Token.Name.Tag": "keyword",
    "Token.Operator.Word": "keyword",
    "Token.Error": "error",
    "Token.Generic.Inserted": "inserted",
    "Token.Generic.Deleted": "deleted",
    "Token.Generic.Heading": "heading",
    "Token.Generic.Subheading": "heading",
}

_lexers: dict[str, "Lexer | None"] = {"": None}
missing_languages: set[str] = set()  # requested: languages whose lexers are not loaded yet


def is_ready(language: str) -> bool:
    """Return whether the language's lexer has been looked for. If not, load it, or in an event loop request it."""
    if language not in _lexers:
        if running_loop():
            missing_languages.add(language)
            return False
        load(language)
    return True


def load(language: str) -> None:
    """Load the lexer of a language; a language without one stays plain."""
    if len(_lexers) >= MAX_LEXERS:
        _lexers.clear()
        _lexers[""] = None
    _lexers[language] = None
    with suppress(Exception):  # an error in the lexer library
        _lexers[language] = lexer_for(language)
    missing_languages.discard(language)


def lexer_for(language: str) -> "Lexer | None":
    """Return the lexer of a language or file name after the ``` of Markdown code; None if there is none."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    name = _NAME.match(language.lstrip("{."))
    if not name or name[0].lower() in {"text", "txt", "plain", "plaintext", "output", "console-output"}:
        return None
    for alias in (name[0], name[0].rpartition(".")[2]):  # of `main.py` the suffix
        try:
            lexer: Lexer = get_lexer_by_name(alias, stripnl=False, ensurenl=False)
            return lexer
        except (ClassNotFound, ImportError):
            continue
    return None


def highlight_line(language: str, text: str, state: LexerState = START) -> tuple[tuple[StyledRun, ...], LexerState]:
    """Return the runs of a line, from the lexer state before it, and the state after it."""
    text = sanitize(text)
    if len(text) > MAX_HIGHLIGHTED_CHARS:  # not cached: each version of a growing line would be kept
        return tuple(_runs([("", text)])), state
    return _highlight_line(language if is_ready(language) else "", text, state)


@lru_cache(4096)
def _highlight_line(language: str, text: str, state: LexerState) -> tuple[tuple[StyledRun, ...], LexerState]:
    lexer = _lexers.get(language)
    pieces = [("", text)]
    if lexer:
        with suppress(Exception):  # an error in the lexer library
            pieces, state = _pieces(lexer, text, state)
    return tuple(_runs(pieces)), state


def _pieces(lexer: "Lexer", text: str, state: LexerState) -> tuple[list[tuple[str, str]], LexerState]:
    states, in_comment = state
    if in_comment and "*/" not in text:
        return [("syntax.comment", text)], state
    end = text.index("*/") + 2 if in_comment else 0
    before = [("syntax.comment", text[:end])] if end else []
    tokens, after = _tokens(lexer, text[end:], states)
    opened = _find_open_comment(tokens)
    pieces = [(_style(kind), value) for kind, value in tokens[:opened]]
    if opened is None:
        return before + pieces, (after, False)
    comment = ("syntax.comment", "".join(value for _, value in tokens[opened:]))
    return [*before, *pieces, comment], (states, True)  # after the comment the lexer continues as before the line


def _tokens(lexer: "Lexer", text: str, states: tuple[str, ...]) -> tuple[list[tuple[Any, str]], tuple[str, ...]]:
    """Return the tokens of one line, and the states after it."""
    from pygments.lexer import ExtendedRegexLexer, LexerContext, RegexLexer

    if isinstance(lexer, RegexLexer):
        context = LexerContext(text + "\n", 0, list(states))
        with suppress(Exception):  # a rule that looks beyond the line fails: then start anew, below
            tokens = _check_tokens(ExtendedRegexLexer.get_tokens_unprocessed(lexer, context=context), text)
            return tokens, tuple(context.stack)
    return _check_tokens(lexer.get_tokens_unprocessed(text + "\n"), text), START[0]


def _check_tokens(tokens: Iterable[tuple[int, Any, str]], text: str) -> list[tuple[Any, str]]:
    """Return the tokens of one line; ValueError if they do not spell the line, or are too many."""
    line_tokens: list[tuple[Any, str]] = []
    for _, kind, value in tokens:
        line_tokens.append((kind, value.removesuffix("\n")))
        if len(line_tokens) > 4 * len(text) + 16:
            raise ValueError("the lexer returned too many tokens")
    if "".join(value for _, value in line_tokens) != text:
        raise ValueError("the lexer lost text")
    return line_tokens


def _find_open_comment(tokens: list[tuple[Any, str]]) -> int | None:
    """Return the index of the token at which an unclosed `/*` comment begins; None without such a comment.

    Some lexers split `/*` without `*/` into operators, errors or a regular expression, up to three tokens.
    """
    from pygments.token import Comment, Error, Operator, Punctuation, String

    for number, (kind, value) in enumerate(tokens):
        if not value.startswith("/"):
            continue
        rest = value + "".join(piece for _, piece in tokens[number + 1 : number + 3])
        if not rest.startswith("/*") or "*/" in "".join(piece for _, piece in tokens[number:])[2:]:
            continue
        if any(kind in open_kind for open_kind in (Comment.Multiline, Error, Operator, Punctuation, String.Regex)):
            return number
    return None


@cache
def _style(kind: Any) -> str:
    while kind:
        if name := _STYLES.get(str(kind)):
            return f"syntax.{name}"
        kind = kind.parent
    return ""


def _runs(pieces: Iterable[tuple[str, str]]) -> Iterator[StyledRun]:
    """Merge adjacent pieces of one style into runs; tabs become spaces up to the next tab stop."""
    column = 0
    for style, group in groupby(pieces, key=itemgetter(0)):
        value = "".join(text for _, text in group)
        shown = (" " * (column % TAB) + value).expandtabs(TAB)[column % TAB :]
        column += len(shown)
        if shown:
            yield StyledRun(shown, f"fence {style}".rstrip())
