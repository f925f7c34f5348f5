"""Lines of styled text, and how runs are wrapped into them. The text of a run is sanitised, without tabs."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.cells import cell_len, get_character_cell_size, set_cell_size


@dataclass(frozen=True, slots=True)
class StyledRun:
    """Text in one style: names of `painting.LOOKS` separated by spaces. `link` is an http, https or mailto URL."""

    text: str
    style: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the screen."""

    runs: tuple[StyledRun, ...] = ()
    decoration: int = 0  # number of leading runs that copying leaves out: bars, bullets, gutters
    ending: str = "\n"  # copied after the runs: a line feed, or in a wrapped line the text dropped there, "" or " "

    @property
    def text(self) -> str:
        """Return the text of all runs, decoration included."""
        return "".join(run.text for run in self.runs)

    @property
    def width(self) -> int:
        """Return the width in cells."""
        return sum(cell_len(run.text) for run in self.runs)


def cut(text: str, width: int) -> str:
    """Cut a text to `width` cells, with an ellipsis if it was longer."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1).rstrip()}…" if width > 0 else ""


_EMOJI = "\ufe0f"  # makes the character before it wide


def wrap(runs: Sequence[StyledRun], width: int, *, words: bool = True) -> list[Line]:
    """Wrap runs into rows, at least one, between words or, without `words`, anywhere; a line feed begins a row."""
    text = "".join([run.text for run in runs])
    if len(text) <= width and text.isascii() and "\n" not in text:
        return [Line(tuple(runs))]
    cutter = _Cutter(runs)
    rows = []
    start = 0
    for piece in text.split("\n"):
        for first, last, ending in _rows(piece, max(1, width), words):
            rows.append(Line(cutter.cut(start + first, start + last), ending=ending))
        start += len(piece) + 1
    return rows


def _rows(text: str, width: int, words: bool) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and `Line.ending` of each row of a logical line."""
    cells = None if text.isascii() else _cells(text)
    total = len(text) if cells is None else cells[-1]
    start = used = 0
    while total - used > width:
        end = start + width if cells is None else _row_end(text, cells, start, width)
        if end == len(text):  # one character, wider than the row
            break
        after = end
        if words and (cut := _last_break(text, cells, start, end)) > start:
            end = cut
            after = cut + (text[cut] == " ")
        yield start, end, text[end:after]
        start = after
        used = start if cells is None else cells[start]
    yield start, len(text), "\n"


def _last_break(text: str, cells: list[int] | None, start: int, limit: int) -> int:
    """Return the last break position, at a space or next to a wide character; `start` if there is none."""
    space = text.rfind(" ", start, limit + 1)
    if space < 0 or text[start:space].isspace():
        space = start
    if cells is not None:
        for place in range(limit, space, -1):
            narrow = cells[place] - cells[place - 1] < 2 and cells[place + 1] - cells[place] < 2
            if not narrow and cells[place + 1] > cells[place] and text[place] != " ":
                return place
    return space


def _cells(text: str) -> list[int]:
    """Return the number of cells before each character, and before the end."""
    if _EMOJI not in text:
        return [0, *accumulate(map(get_character_cell_size, text))]
    sizes = []
    base = ""  # the character that an emoji selector may widen
    for character in text:
        size = get_character_cell_size(character)
        if character == _EMOJI:
            size = cell_len(base + _EMOJI) - cell_len(base)
            base = ""
        elif size:
            base = character
        sizes.append(size)
    return [0, *accumulate(sizes)]


def _row_end(text: str, cells: list[int], start: int, width: int) -> int:
    """Return the end of the longest row from `start`: at least one character, with its combining characters."""
    end = bisect_right(cells, cells[start] + width, lo=start + 1) - 1
    if end < len(text) and text[end] == _EMOJI:
        end -= 1
        while end > start and cells[end + 1] == cells[end]:
            end -= 1
    if end > start:
        return end
    end = start + 1
    while end < len(text) and (text[end] == _EMOJI or cells[end + 1] == cells[end]):
        end += 1
    return end


class _Cutter:
    """Cutter of runs by text offsets, from front to back."""

    def __init__(self, runs: Sequence[StyledRun]) -> None:
        self._runs = runs
        self._at = 0  # index of the next run
        self._offset = 0  # offset at which the next run begins

    def cut(self, start: int, end: int) -> tuple[StyledRun, ...]:
        """Return the runs between two offsets."""
        runs = []
        while self._at < len(self._runs):
            run = self._runs[self._at]
            low, high = max(0, start - self._offset), min(len(run.text), end - self._offset)
            if low < high:
                runs.append(run if high - low == len(run.text) else StyledRun(run.text[low:high], run.style, run.link))
            if self._offset + len(run.text) > end:
                break
            self._offset += len(run.text)
            self._at += 1
        return tuple(runs)
