"""Blocks of code that grow line by line."""

import re
from collections.abc import Sequence
from itertools import takewhile

from localdflash.tui.block_layout import MIN_TEXT_CELLS, GrowingBlock, add_prefix
from localdflash.tui.highlight import START, LexerState, highlight_line, is_ready
from localdflash.tui.inline import clean
from localdflash.tui.styled_lines import Line, StyledRun, cut, wrap

MAX_HIGHLIGHTED_LINES = 2_000

_GUTTER = StyledRun("  ", "fence")
_OPENER = re.compile(r"( {0,3})(`{3,}(?=[^`\n]*$)|~{3,})[ \t]*([^\n]*?)[ \t]*$", re.MULTILINE)


class Code(GrowingBlock):
    """Code block of raw lines. `number` counts the fences of the document from 1; 0 is indented code."""

    def __init__(self, info: str = "", number: int = 0) -> None:
        super().__init__()
        self.info = info
        self.number = number
        self.closed = False
        self.open_line = ""  # the last line, while it has no line feed
        self._raw: list[str] = []
        self._states: list[LexerState] = [START]
        self._needs_lexer = False  # lines are plain until their lexer is loaded

    @property
    def language(self) -> str:
        """Return the first word after the ticks, as written."""
        return (self.info.split() or [""])[0]

    @property
    def code(self) -> str:
        """Return the code, unchanged."""
        return "".join(self._raw) + self.open_line

    def add(self, line: str) -> None:
        """Append one complete line."""
        runs, state = self._highlight(line)
        self._raw.append(line)
        self._runs.append(runs)
        self._states.append(state)

    def set_lines(self, lines: Sequence[str]) -> None:
        """Replace the lines; the last may still grow. Unchanged lines are not highlighted again."""
        complete = lines[:-1]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._raw, complete, strict=False)))
        del self._raw[same:], self._runs[same:], self._states[same + 1 :]
        if self._laid_out > same:
            self._width = 0
        for line in complete[same:]:
            self.add(line)
        self.open_line = lines[-1] if lines else ""

    def highlight_again(self) -> bool:
        """Highlight lines that are plain because their lexer was not loaded; return whether any changed."""
        if not self._needs_lexer or not is_ready(self.language):
            return False
        self._needs_lexer, self._width = False, 0
        raw, self._raw, self._runs, self._states = self._raw, [], [], [START]
        for line in raw:
            self.add(line)
        return True

    def _open_runs(self) -> Sequence[StyledRun]:
        return self._highlight(self.open_line)[0] if self.open_line else ()

    def _highlight(self, line: str) -> tuple[tuple[StyledRun, ...], LexerState]:
        """Return the next line's runs, and the lexer state after it."""
        language = self.language if len(self._raw) < MAX_HIGHLIGHTED_LINES else ""
        self._needs_lexer |= not is_ready(language)
        return highlight_line(language, line.removesuffix("\n"), self._states[-1])

    def _label(self, width: int) -> list[Line]:
        if not self.number:
            return []
        gutter = (_GUTTER,) if width - 2 >= MIN_TEXT_CELLS else ()
        room = width - 2 * len(gutter)
        label = cut(f"{clean(self.info) or 'code'}  {self.number}", room)
        return [Line((*gutter, StyledRun(label, "fence-label")), 1 + len(gutter))]

    def _wrap_line(self, runs: Sequence[StyledRun]) -> Sequence[Line]:
        room = self._width - 2
        if room < MIN_TEXT_CELLS:
            return wrap(runs, self._width, words=False)
        return [add_prefix(_GUTTER, line) for line in wrap(runs, room, words=False)]


class OpenFence:
    """State of an open fence: recognises its end and the code in its lines."""

    def __init__(self, opener: str) -> None:
        match = _OPENER.match(opener.replace("\r", ""))
        assert match
        self.info = match[3]
        self._indent = len(match[1])
        mark = re.escape(match[2][0])
        self._end = re.compile(rf" {{0,3}}{mark}{{{len(match[2])},}}[ \t]*$")
        self._maybe = re.compile(rf" {{0,3}}{mark}*$")

    def ends_with(self, line: str) -> bool:
        """Return whether this line, which may be incomplete, ends the fence."""
        return bool(self._end.match(line.replace("\r", "").removesuffix("\n")))

    def may_end_with(self, line: str) -> bool:
        """Return whether a line that is still growing may become the closing line of the fence."""
        return bool(self._maybe.match(line))

    def code(self, line: str) -> str:
        """Return the line without the fence's own indent."""
        spaces = len(line) - len(line.lstrip(" "))
        return line[min(spaces, self._indent) :]
