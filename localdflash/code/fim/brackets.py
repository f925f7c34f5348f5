"""Track open brackets, strings and comments in a text that comes character by character.

Only the quotes and comment signs of a language are known. An unclosed one-line string ends with its line, so an error
does not last.
"""

from dataclasses import dataclass, replace

OPENERS, CLOSERS = "([{", ")]}"  # in the same order
_HASH, _SLASHES, _DASHES = ("#",), ("//", "/*"), ("--",)
_COMMENTS = {"python": _HASH, "lua": _DASHES, "": ("#", "//")}
_QUOTES = {"go": '"`', "javascript": "\"'`", "typescript": "\"'`", "tsx": "\"'`", "rust": '"', "": '"'}
_LASTING = ("`", "*/", '"""', "'''")  # what may hold line feeds


@dataclass(frozen=True)
class Opener:
    """An open bracket, the indentation of its line in characters, and whether only blanks follow on that line."""

    bracket: str
    indent: int
    ends_line: bool = False

    @property
    def opens_block(self) -> bool:
        """Return whether the bracket is a brace around lines (not used for Python)."""
        return self.bracket == "{" and self.ends_line

    @property
    def closer(self) -> str:
        """Return the matching closing bracket."""
        return CLOSERS[OPENERS.index(self.bracket)]

    def is_closed_by(self, closer: str) -> bool:
        """Return whether this closing bracket matches."""
        return closer == self.closer


class Brackets:
    """Feed it characters. `inside` is what ends the current string or comment, or "" in code."""

    def __init__(self, language: str) -> None:
        self._comments = _COMMENTS.get(language, _SLASHES)
        self._quotes = _QUOTES.get(language, "\"'")
        self._triples = language == "python"
        self.stack: list[Opener] = []
        self.inside = ""
        self._indent, self._in_indent = 0, True
        self._last = ""  # characters that may belong to a sign of several
        self.escaped = False  # the next character stands for itself
        self._empty = self._after_opener = False

    def feed(self, text: str) -> None:
        """Read the next characters."""
        for char in text:
            if char == "\n" and self._after_opener:
                self.stack[-1] = replace(self.stack[-1], ends_line=True)
            self._after_opener = self._after_opener and char in " \t"
            self._count_indent(char)
            if self.inside:
                self._in_text(char)
            else:
                self._in_code(char)
            if char == "\n" and self.inside not in _LASTING:
                self.inside, self._last = "", ""

    @property
    def in_code(self) -> bool:
        """Return whether the next character is code."""
        return not self.inside

    def _count_indent(self, char: str) -> None:
        if char == "\n":
            self._indent, self._in_indent = 0, True
        elif self._in_indent and char in " \t":
            self._indent += 1
        else:
            self._in_indent = False

    def _in_text(self, char: str) -> None:
        if self.escaped:
            self.escaped = False
        elif char == "\\" and self.inside not in {"\n", "*/"}:
            self.escaped = True
            self._last = ""
        else:
            self._last = (self._last + char)[-len(self.inside) :]
            if self._last == self.inside:
                self._last = char * 2 if self._empty else ""
                self.inside = ""
        self._empty = False

    def _in_code(self, char: str) -> None:
        sign = next((sign for sign in self._comments if (self._last + char).endswith(sign)), "")
        if sign:
            self.inside, self._last = "*/" if sign == "/*" else "\n", ""
        elif char in self._quotes:
            third = self._triples and self._last == char * 2  # after an empty string
            self.inside, self._last, self._empty = char * 3 if third else char, "", not third
        else:
            self._last = char
            if char in OPENERS:
                self.stack.append(Opener(char, self._indent))
                self._after_opener = True
            elif char in CLOSERS and self.stack and self.stack[-1].is_closed_by(char):
                self.stack.pop()
