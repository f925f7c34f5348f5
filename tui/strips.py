"""Turn lines into strips of the screen: styles from the palette, the selection marked, offsets for the mouse.

Each run carries its position in what copying gives of its entry, as Textual's selection wants it: x is the offset in
the entry, y the entry's index. So a selection stays on its text when rows above it move or are wrapped anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from localdflash.tui.lines import Line, StyledRun
from localdflash.tui.palette import Palette

LINK = "localdflash_link"  # the key in a style's meta under which the URL of a run is
_SAFE = ("http://", "https://", "mailto:")


@dataclass(frozen=True, slots=True)
class Painter:
    """How rows look: the styles by name, their background, and the style of a selection."""

    palette: Palette
    base: Style
    selection: Style
    edge: int = 0  # the cell at which the ground of code ends

    def strip(
        self, line: Line, index: int, offset: int, selected: tuple[int, int] | None, gutter: StyledRun, width: int
    ) -> Strip:
        """A row of the entry with this index whose text begins at this offset, as wide as the screen.

        `selected`: the offsets between which the entry's text is selected.
        """
        segments = [
            segment
            for run in (gutter, *line.runs[: line.decoration])
            for segment in self._decoration(run, index, offset)
        ]
        for run in line.runs[line.decoration :]:
            segments += self._text(run, index, offset, selected or (0, 0))
            offset += len(run.text)
        if line.runs and line.runs[-1].style.startswith("fence"):
            room = self.edge - sum(segment.cell_length for segment in segments)
            ground = Style(bgcolor=self.palette[line.runs[-1].style].bgcolor)
            segments.append(Segment(" " * room, self.base + ground))
        strip = Strip(segments).adjust_cell_length(width, self.base)
        end = Segment("", _place(index, offset))  # where the mouse is to the right of the text
        return Strip([*strip, end], width)

    def _decoration(self, run: StyledRun, index: int, offset: int) -> Iterator[Segment]:
        """One segment for each character, all with the offset at which the text of the row begins."""
        style = self.base + self.palette[run.style] + _place(index, offset)
        return (Segment(character, style) for character in run.text)

    def _text(self, run: StyledRun, index: int, offset: int, selected: tuple[int, int]) -> Iterator[Segment]:
        style = self.base + self.palette[run.style]
        size = len(run.text)
        low, high = (max(0, min(edge - offset, size)) for edge in selected)
        for start, end, marked in ((0, low, False), (low, high, True), (high, size, False)):
            if end > start:
                look = style + self.selection if marked else style
                yield Segment(run.text[start:end], look + _place(index, offset + start, run.link))


def _place(index: int, offset: int, link: str = "") -> Style:
    meta: dict[str, object] = {"offset": (offset, index)}
    if link.lower().startswith(_SAFE):
        meta[LINK] = link
    return Style.from_meta(meta)
