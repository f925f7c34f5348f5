"""Track open brackets, strings and comments in streamed code. An unclosed one-line string ends with its line."""

import re
from dataclasses import dataclass, replace

OPENERS, CLOSERS = "([{", ")]}"  # matching brackets have the same index
_HASH, _SLASHES, _DASHES = ("#",), ("//", "/*"), ("--",)
_COMMENTS = {"python": _HASH, "lua": _DASHES, "": (" # ", " // ")}  # "": not `#fff`, `$#` or `http://`
_QUOTES = {"go": "\"'`", "javascript": "\"'`", "typescript": "\"'`", "tsx": "\"'`", "rust": '"', "": '"'}
_MULTILINE = ("`", "*/", '"""', "'''")  # ends of strings and comments that may hold line feeds
_WITH_TRIPLES = ("python", "java")  # languages with strings in three quotes
_JAVASCRIPT = ("javascript", "typescript", "tsx")
_REGEX_START = re.compile(r"(?:^|[(\[{,;:=!&|?>])[ \t]*/$")  # `</` begins a JSX tag
_CHAR_START = re.compile(r"(?<!'\w)'$")  # of a Rust character, unless a word follows: then it is a lifetime or 'a'
_LONGEST_START = 16  # characters of a line that decide what a quote or slash begins


@dataclass(frozen=True)
class Opener:
    """Bracket that is open."""

    bracket: str
    indent: int  # characters of indentation of the bracket's line
    ends_line: bool = False  # only blanks follow the bracket on its line

    @property
    def is_block(self) -> bool:
        """Return whether the bracket is a brace around lines (not used for Python)."""
        return self.bracket == "{" and self.ends_line

    @property
    def closer(self) -> str:
        """Return the matching closing bracket."""
        return CLOSERS[OPENERS.index(self.bracket)]


class Brackets:
    """Tracker to feed with code. `terminator` is the text that ends the current string or comment; "" outside."""

    def __init__(self, language: str) -> None:
        self._comments = _COMMENTS.get(language, _SLASHES)
        self._quotes = _QUOTES.get(language, "\"'")
        self._language = language
        self.stack: list[Opener] = []
        self.terminator = ""
        self._indent, self._in_indent = 0, True
        self._last = " "  # the last characters, which may be the start of a string, regular expression or comment
        self.escaped = False  # the next character is escaped
        self._empty = self._after_opener = False  # the string is empty so far; only blanks since an opener

    def feed(self, text: str) -> None:
        """Read the next characters."""
        for char in text:
            if char == "\n" and self._after_opener:
                self.stack[-1] = replace(self.stack[-1], ends_line=True)
            self._after_opener = self._after_opener and char in " \t"
            if char == "\n":
                self._indent, self._in_indent = 0, True
            elif self._in_indent and char in " \t":
                self._indent += 1
            else:
                self._in_indent = False
            if self.terminator:
                self._in_text(char)
            else:
                self._in_code(char)
            if char == "\n" and self.terminator not in _MULTILINE:
                self.terminator, self._last = "", " "

    def _in_text(self, char: str) -> None:
        if self.escaped:
            self.escaped = False
        elif char == "\\" and self._has_escapes:
            self.escaped = True
            self._last = ""
        elif self.terminator == "/" and char == "[":  # in a character class, a slash does not end the expression
            self.terminator = "]"
        else:
            self._last = (self._last + char)[-len(self.terminator) :]
            if self._last == self.terminator:
                self._last = char * 2 if self._empty else "a"  # a value, after which a slash divides
                self.terminator = "/" if char == "]" else ""
        self._empty = False

    def _in_code(self, char: str) -> None:
        marker = next((marker for marker in self._comments if (self._last + char).endswith(marker)), "")
        if marker:
            self.terminator, self._last = "*/" if marker == "/*" else "\n", ""
        elif self._last.endswith(("/", "'")) and (begun := self._begun_before(char)):
            self.terminator, self._last = begun, ""
            self._in_text(char)
        elif char in self._quotes and not self._is_apostrophe(char):
            # `_in_text` left the quotes of an empty string there.
            third = self._language in _WITH_TRIPLES and self._last == char * 2
            self.terminator, self._last, self._empty = char * 3 if third else char, "", not third
        else:
            self._last = (self._last + char.replace("\t", " "))[-_LONGEST_START:]
            if char in OPENERS:
                self.stack.append(Opener(char, self._indent))
                self._after_opener = True
            elif char in CLOSERS and self.stack and self.stack[-1].closer == char:
                self.stack.pop()

    def _begun_before(self, char: str) -> str:
        """Return the end of the regular expression or Rust character beginning with this character; "" if none does."""
        if self._language in _JAVASCRIPT and _REGEX_START.search(self._last):
            return "/"
        is_char = self._language == "rust" and _CHAR_START.search(self._last) and not (char.isalnum() or char in "_'")
        return "'" if is_char else ""

    def _is_apostrophe(self, char: str) -> bool:
        """Return whether a quote is in a word, as in the text of a JSX tag, or in a number of C++."""
        is_in_word = self._language in _JAVASCRIPT and self._last[-1:].isalnum()
        return char == "'" and (is_in_word or (self._language == "cpp" and self._last[-1:].isdigit()))

    @property
    def _has_escapes(self) -> bool:
        """Return whether a backslash is an escape in the current string."""
        return self.terminator not in ("\n", "*/") and (self._language, self.terminator) != ("go", "`")
