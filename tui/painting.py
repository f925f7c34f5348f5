"""Draw lines as strips of the screen: the look of each style, the selection marked, offsets for the mouse.

Every colour is accompanied by bold, italic or underlined text, for terminals and eyes that cannot tell colours apart.
Each run carries its position in what copying gives of its entry, as Textual's selection wants it: x is the offset in
the entry, y the entry's index. So a selection stays on its text when rows above it move or are wrapped anew.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.strip import Strip

from localdflash.tui.styled_lines import Line, StyledRun

# name: colour (a variable of the theme), ground (the same), attributes
_LOOKS: dict[str, tuple[str, str, str]] = {
    "strong": ("", "", "bold"),
    "emphasis": ("", "", "italic"),
    "strike": ("", "", "strike"),
    "code": ("secondary", "", ""),
    "link": ("primary", "", "underline"),
    "heading1": ("primary", "", "bold underline"),
    "heading2": ("primary", "", "bold"),
    "heading3": ("primary", "", "bold"),
    "heading4": ("", "", "bold"),
    "heading5": ("", "", "bold"),
    "heading6": ("", "", "bold"),
    "quote": ("text-muted", "", "italic"),
    "bullet": ("accent", "", ""),
    "table": ("text-muted", "", ""),
    "rule": ("text-muted", "", ""),
    "muted": ("text-muted", "", ""),
    "fence": ("", "surface", ""),
    "fence-label": ("text-muted", "surface", ""),
    "syntax.keyword": ("primary", "", ""),
    "syntax.string": ("success", "", ""),
    "syntax.comment": ("text-muted", "", "italic"),
    "syntax.number": ("warning", "", ""),
    "syntax.function": ("secondary", "", ""),
    "syntax.type": ("accent", "", ""),
    "syntax.operator": ("", "", ""),
    "syntax.name": ("", "", ""),
    "syntax.error": ("error", "", ""),
    "syntax.inserted": ("success", "success-tint", ""),
    "syntax.deleted": ("error", "error-tint", ""),
    "syntax.heading": ("primary", "", "bold"),
    "tint.dflash": ("dflash", "dflash-tint", ""),
    "tint.lookup": ("lookup", "lookup-tint", "italic"),
    "tint.grammar": ("grammar", "grammar-tint", "bold italic"),
    "tint.own": ("", "own-tint", "bold"),
    "step": ("", "", "underline"),
    "user": ("primary", "", "bold"),
    "assistant": ("secondary", "", "bold"),
    "system": ("accent", "", "bold"),
    "note": ("text-muted", "", "italic"),
    "error": ("error", "", "bold"),
    "bar": ("accent", "", "bold"),
    "more": ("primary", "", ""),
}


class Palette:
    """Rich styles of a theme, by names separated by spaces. `variables` are the app's theme variables."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._styles: dict[str, Style] = {}

    def __getitem__(self, names: str) -> Style:
        """Combine the styles of all names, later ones over earlier ones; unknown names add nothing."""
        found = self._styles.get(names)
        if found is None:
            found = self._styles[names] = Style.combine([Style.null(), *map(self._look, names.split())])
        return found

    def _look(self, name: str) -> Style:
        if name not in _LOOKS:
            return Style.null()
        colour, ground, attributes = _LOOKS[name]
        tinted = self._colour(ground) if ground else None
        if tinted and tinted.ansi != -1 and name.startswith("tint."):
            colour = ""  # a tint is chosen for the theme's own text
        text = self._colour(colour) if colour else None
        return Style(
            color=text.rich_color if text else None,
            bgcolor=tinted.rich_color if tinted else None,
            bold="bold" in attributes or None,
            italic="italic" in attributes or None,
            underline="underline" in attributes or None,
            strike="strike" in attributes or None,
            dim=(colour == "text-muted" and bool(text) and text.ansi == -1) or None if text else None,
        )

    def _colour(self, variable: str) -> Color | None:
        """Return a colour of the theme, or None. "auto 60%" and the like are mixed from its text and its background."""
        value = self._variables.get(variable, "")
        try:
            colour = Color.parse(value.split(" ")[0])
        except ColorParseError:
            return self._muted() if value.startswith("auto") else None
        return colour if colour.ansi is not None else Color(colour.r, colour.g, colour.b)

    def _muted(self) -> Color | None:
        text, ground = self._colour("foreground"), self._colour("background")
        return ground.blend(text, 0.6) if text and ground else None


LINK = "localdflash_link"  # key of the URL in a style's meta
_SAFE = ("http://", "https://", "mailto:")


@dataclass(frozen=True, slots=True)
class Painter:
    """Painter of rows, with the palette, the background and the style of a selection."""

    palette: Palette
    base: Style
    selection: Style
    edge: int = 0  # the cell at which the ground of code ends

    def strip(
        self, line: Line, index: int, offset: int, selected: tuple[int, int] | None, gutter: StyledRun, width: int
    ) -> Strip:
        """Return a row of the entry with this index whose text begins at this offset, as wide as the screen.

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
        """Return one segment for each character, all with the offset at which the text of the row begins."""
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
