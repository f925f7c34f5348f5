"""Decide while decoding where a completion ends: text that was returned is never taken back.

Text is held back while it may turn out to be trailing blanks, a repetition, or the rest of the cursor's line.
"""

import math
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import takewhile
from typing import Literal

from localdflash.code.fim import clauses
from localdflash.code.fim.brackets import CLOSERS
from localdflash.code.fim.extent import CursorContext, ExtentKind, indent_of, starts_block
from localdflash.code.fim.repeats import Repeats, find_stutter

Reason = Literal["line", "statement", "block", "suffix", "repeat", "unsure"]
_LARGER_KIND: Mapping[str, ExtentKind] = {"line": "statement", "statement": "block"}
MAX_LINES = 12  # non-empty lines of a completion
MAX_EMPTY_LINES = 2  # consecutive
_WITHIN_WORD = re.compile(r"\w\w")
_CONTINUES = re.compile(r"(\\|=>|[,+\-*/%=&|^<.?:])$")
_INCREMENT = re.compile(r"(\+\+|--)$")


class Stopping:
    """Stopping rule of one completion, whose first `skipped` characters are already before the cursor.

    `reason` is why the completion ended; "" until then. It ends before two consecutive tokens whose probabilities have
    a geometric mean below `min_probability`; 0 disables this rule.
    """

    def __init__(self, cursor: CursorContext, skipped: int = 0, min_probability: float = 0.0) -> None:
        self.reason: Reason | Literal[""] = ""
        self._cursor, self._skipped, self._word_length = cursor, skipped, skipped
        self._kind = cursor.kind
        self._brackets = deepcopy(cursor.brackets)
        self._outer_open = len(self._brackets.stack)  # minimum number of open brackets since the cursor
        same_block = takewhile(lambda line: indent_of(line) >= cursor.indent, cursor.below)
        self._repeats = Repeats(cursor.above, [*same_block])
        self._rest = cursor.rest.strip()
        self._text, self._sent = "", 0
        self._min_pair_logprob = 2 * math.log(min_probability) if min_probability > 0 else -math.inf
        self._last: tuple[int, float] | None = None  # offset and log-probability of the last token
        self._line_start, self._line_prefix = 0, cursor.line  # current line: offset, and part before the cursor
        self._line_count = self._empty_lines = 0  # lines so far, and consecutive empty ones
        self._indent: int | None = None if cursor.after_block_start or not cursor.line.strip() else cursor.indent
        self._grouped = not cursor.after_block_start  # an empty line may end the block
        self._may_branch = cursor.after_block_start and bool(cursor.line.strip())  # the block may have further branches
        self._closing = False  # on the line that closes a bracket open at the cursor
        self._may_end_block = False  # on a line that ends the block, unless its first word continues the block
        self._starts_statement = True  # the line begins a statement
        self._jump_indent: int | None = None  # indentation of the current jump, such as `return`
        self._unreachable_indent: int | None = None  # lines after a jump with this indentation or more are unreachable
        self._may_continue_below = False  # whether the next line may continue the finished statement
        blank = not cursor.line.strip() and not self._rest
        self._held_blanks: str | None = "" if blank else None  # leading blanks of an empty line; None once used

    def later(self) -> "Stopping":
        """Return a stopping rule for the same completion that ends later: a line with its statement, then its block."""
        kind = _LARGER_KIND.get(self.reason, self._cursor.kind)
        stopping = Stopping(replace(self._cursor, kind=kind), self._word_length)
        stopping._grouped = False
        return stopping

    @property
    def ended(self) -> bool:
        """Return whether the completion has ended."""
        return bool(self.reason)

    @property
    def _line(self) -> str:
        """Return the current line so far, with its part before the cursor."""
        return self._line_prefix + self._text[self._line_start :]

    def push(self, text: str, logprob: float | None = None) -> str:
        """Add one token's text; return newly certain text. `logprob`: log-probability of the token, if known."""
        text, self._skipped = text[self._skipped :], max(self._skipped - len(text), 0)
        start = len(self._text)
        for char in text:
            if self.reason:
                break
            for released in self._hold_blanks(char):
                self._take(released)
        if logprob is not None and start < len(self._text.rstrip()):
            self._stop_if_unsure(start, logprob)
        return self._certain(len(self._text) if self.reason else self._held_from())

    def _stop_if_unsure(self, start: int, logprob: float) -> None:
        """Stop before the last token and this one, at `start`, if both together are too unlikely."""
        last, self._last = self._last, (start, logprob)
        if last and last[1] + logprob < self._min_pair_logprob:
            self._stop("unsure", self._start_of_word(last[0]))

    def _start_of_word(self, at: int) -> int:
        while 0 < at < len(self._text) and _WITHIN_WORD.match(self._text, at - 1):
            at -= 1
        return at

    def finish(self) -> str:
        """Return the text held back, without repetitions, after the last token."""
        if not self.reason and self._may_end_block:
            self._decide_line()
        if not self.reason:
            self._end_of_line()
        return self._certain(len(self._text))

    def _hold_blanks(self, char: str) -> str:
        """Return the text to add for `char`. On an empty line, leading blanks are held back until the first code.

        Held line feeds are then dropped unless the code is indented less than the line above.
        """
        if self._held_blanks is None:
            return char
        if char.isspace():
            self._held_blanks += char
            if self._held_blanks.count("\n") > MAX_EMPTY_LINES:
                self._stop("block")
            return ""
        lead, self._held_blanks = self._held_blanks, None
        indent, line = lead.rpartition("\n")[2], self._cursor.line
        if "\n" not in lead and line and not self._cursor.after_block_start:
            return char
        if "\n" not in lead or not indent.startswith(line) or len(indent) < self._indent_above():
            return lead + char
        return indent[len(line) :] + char

    def _certain(self, end: int) -> str:
        certain = self._text[self._sent : end].rstrip() if end == len(self._text) else self._text[self._sent : end]
        if not (self._text[: self._sent] + certain).strip():
            certain = ""
        self._sent += len(certain)
        return certain

    def _held_from(self) -> int:
        """Return the offset where the uncertain part of the text begins."""
        text, line = self._text, self._text[self._line_start :]
        start_of_uncertain = len(text)
        if not self._rest or self._line_start:
            start = self._repeats.possible_start(self._line, self._line_start)
            start_of_uncertain = start_of_uncertain if start is None else len(text[:start].rstrip())
        else:
            tails = range(max(len(text.rstrip()) - len(self._rest), 0), len(text))
            starts = [at for at in tails if self._rest.startswith(text[at:].rstrip())]
            start_of_uncertain = min(start_of_uncertain, len(text[: min(starts, default=start_of_uncertain)].rstrip()))
        if self._may_end_block:
            start_of_uncertain = min(start_of_uncertain, len(text[: self._line_start].rstrip()))
        if self._last and self._min_pair_logprob > -math.inf:
            start_of_uncertain = min(start_of_uncertain, self._start_of_word(self._last[0]))
        if repeat := find_stutter(line):
            start_of_uncertain = min(start_of_uncertain, len(text[: self._line_start + repeat.end].rstrip()))
        return start_of_uncertain

    def _take(self, char: str) -> None:
        if self._may_end_block and not (char.isalnum() or char == "_"):
            self._decide_line()
        if self.ended:
            return
        if char == "\n":
            self._line_feed()
        elif not char.isspace():
            self._code(char)
        if self.reason:
            return
        self._brackets.feed(char)
        self._outer_open = min(self._outer_open, len(self._brackets.stack))
        self._text += char
        repeat = find_stutter(self._text[self._line_start :])
        if repeat and repeat.enough:
            self._stop("repeat", self._line_start + repeat.end)

    def _code(self, char: str) -> None:
        if not self._line.strip():
            self._start_line(char)
        if self.reason:
            return
        quote = self._brackets.terminator
        if quote and quote == self._cursor.brackets.terminator:
            if self._rest.startswith(quote) and char == quote[0] and not self._brackets.escaped:
                self._stop("suffix")
        elif char in CLOSERS and not self._brackets.terminator and self._closes_again(char):
            self._stop("suffix")

    def _closes_again(self, closer: str) -> bool:
        """Return whether the text after the cursor already contains this closing bracket."""
        stack = self._brackets.stack
        if len(stack) > self._outer_open:
            return False
        return not stack or len(stack) - 1 not in self._cursor.unclosed_after or stack[-1].closer != closer

    def _start_line(self, char: str) -> None:
        """Handle the first non-blank character of a line: its indentation may end the block."""
        indent = indent_of(self._line)
        if self._may_continue_below:
            self._may_continue_below = False
            self._may_end_block = char.isalpha() and indent == self._cursor.indent
            if not self._may_end_block and (indent < self._cursor.indent or char not in clauses.CHAIN_SIGNS):
                self._stop("statement")
            return
        if self._kind != "block" or self._brackets.terminator or len(self._brackets.stack) > self._outer_open:
            return
        if char in CLOSERS and not self._closes_again(char):
            self._closing = True
            return
        if self._unreachable_indent is not None and indent >= self._unreachable_indent:
            self._stop("block")
        self._unreachable_indent = None
        first, self._indent = self._indent is None, indent if self._indent is None else self._indent
        outside = self._cursor.after_block_start and indent <= self._opener_indent() if first else indent < self._indent
        if outside and (char.isalnum() or char == "_"):
            self._may_end_block = True
        elif outside or (not first and self._empty_lines and self._grouped and indent <= self._indent):
            self._stop("block")

    def _decide_line(self) -> None:
        """Decide whether a line that may end the block does, now that its first word is known."""
        line, language = self._line, self._cursor.language
        indent, below = indent_of(line), next(iter(self._cursor.below), "")
        is_same_block = indent_of(below) == indent
        self._may_end_block = False
        if clauses.is_label(language, line) and self._cursor.after_block_start and indent == self._opener_indent():
            return
        branches = self._may_branch and indent == self._cursor.indent and clauses.is_branch(language, line)
        branches_below = is_same_block and clauses.is_branch(language, below)
        if branches and not branches_below:
            return
        self._closing = clauses.is_end(language, line)
        if not self._closing or branches_below or (is_same_block and clauses.is_end(language, below)):
            self._stop("statement" if self._kind == "statement" else "block", self._line_start)

    def _opener_indent(self) -> int:
        line = self._cursor.line
        return indent_of(line) if line.strip() else self._indent_above()

    def _indent_above(self) -> int:
        return indent_of(self._cursor.above[-1] if self._cursor.above else self._cursor.line)

    def _line_feed(self) -> None:
        line = self._line
        if self._end_of_line():
            return
        self._empty_lines = 0 if line.strip() else self._empty_lines + 1
        self._line_count += bool(line.strip())
        if self._text.strip() or self._kind != "block":
            self._stop_after(line)
        if self._empty_lines > MAX_EMPTY_LINES or (self._text.strip() and self._empty_lines >= MAX_EMPTY_LINES):
            self._stop("block")
        if self._line_start or not self._rest:
            self._repeats.add(line, self._line_start)
        self._line_start, self._line_prefix = len(self._text) + 1, ""

    def _stop_after(self, line: str) -> None:
        """Stop if the completion ends with this complete line; a statement that starts a block becomes a block."""
        language, reason = self._cursor.language, "block" if self._kind == "open" else self._kind
        if self._kind == "line":
            self._stop("line")
        elif self._opens_block_below(line):
            self._stop("statement")
        elif self._line_count >= MAX_LINES or (self._may_continue_below and not line.strip()):
            self._stop(reason)
        elif self._closing:
            self._closing = False
            if not starts_block(language, line):
                self._stop(reason)
        elif self._kind == "block" and self._is_unreachable_after(line):
            self._stop("block")
        elif self._kind == "statement" and not self._continues(line):
            if starts_block(language, line) and not self._rest:
                self._kind, self._grouped, self._may_branch = "block", False, True
                self._indent = self._cursor.indent + 1
            elif clauses.may_continue_below(language, line) and not self._rest:
                self._may_continue_below = self._may_branch = True
            else:
                self._stop("statement")

    def _opens_block_below(self, line: str) -> bool:
        """Return whether a line begins a block whose lines or end the text after the cursor already contains."""
        cursor = self._cursor
        if cursor.matches_closers_below(self._brackets.stack):
            return True
        below = indent_of(cursor.below[0]) if cursor.below else 0
        indented = not clauses.has_block_braces(cursor.language) and starts_block(cursor.language, line)
        return indented and indent_of(line) < below and not self._rest

    def _is_unreachable_after(self, line: str) -> bool:
        """Return whether a jump such as `return`, now complete, makes the rest of the block unreachable."""
        if self._starts_statement and clauses.is_jump(self._cursor.language, line):
            self._jump_indent = indent_of(line)
        self._starts_statement = not self._continues(line)
        if self._jump_indent is None or not self._starts_statement:
            return False
        self._unreachable_indent, self._jump_indent = self._jump_indent, None
        return self._unreachable_indent == self._indent and not self._may_branch

    def _continues(self, line: str) -> bool:
        """Return whether a statement continues after a line, judged by open brackets and the line's last character."""
        brackets, unclosed_after, language = self._brackets, self._cursor.unclosed_after, self._cursor.language
        if brackets.terminator and brackets.terminator != "\n":
            return len(brackets.terminator) > 1 or brackets.terminator == "`"
        if len(brackets.stack) > self._outer_open:
            return True
        blocks = clauses.has_block_braces(language)
        if any(i in unclosed_after and not (blocks and opener.is_block) for i, opener in enumerate(brackets.stack)):
            return True
        code = line.rstrip()
        if language == "python" or starts_block(language, line):
            return code.endswith("\\")
        return bool(_CONTINUES.search(code)) and not _INCREMENT.search(code)

    def _end_of_line(self) -> bool:
        """Stop if the complete line duplicates its surroundings, without the duplicate; return whether it did."""
        text = self._text[self._line_start :]
        line = self._line_prefix + text
        if self._rest and not self._line_start:
            if text.rstrip().endswith(self._rest) and (len(self._rest) > 1 or not self._rest.isalnum()):
                self._stop("suffix", len(text.rstrip()) - len(self._rest))
        elif self._repeats.is_suffix(line) and len(self._brackets.stack) <= self._outer_open:
            self._stop("suffix", self._line_start)
        elif text.strip() and (start := self._repeats.repetition_start(line, self._line_start)) is not None:
            self._stop("repeat", start)
        return self.ended

    def _stop(self, reason: Reason, end: int | None = None) -> None:
        self.reason = reason
        if end is not None:
            self._text = self._text[:end]
