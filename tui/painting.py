"""Draw lines as strips of the screen: styles, the selection, and offsets for the mouse.

Selection offsets are positions in the copied text, not on the screen: x is the offset in the entry, y the index of the
entry. So a selection stays on its text when rows move or are wrapped again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.markup import parse_style
from textual.strip import Strip

from localdflash.tui.styled_lines import Line, StyledRun

_NAMES_BY_LOOK = {  # style of Textual -> names in `StyledRun.style`
    "bold": "strong heading4 heading5 heading6",
    "italic": "emphasis",
    "strike": "strike",
    "$secondary": "code syntax.function",
    "underline $primary": "link",
    "bold underline $primary": "heading1",
    "bold $primary": "heading2 heading3 syntax.heading user",
    "italic $text-muted": "quote syntax.comment note",
    "$accent": "bullet syntax.type",
    "$text-muted": "table rule muted",
    "on $surface": "fence",
    "$text-muted on $surface": "fence-label",
    "$primary": "syntax.keyword more",
    "$success": "syntax.string",
    "$warning": "syntax.number",
    "$error": "syntax.error",
    "$success on $success-tint": "syntax.inserted",
    "$error on $error-tint": "syntax.deleted",
    "$dflash on $dflash-tint": "tint.dflash",
    "italic $lookup on $lookup-tint": "tint.lookup",
    "bold italic $grammar on $grammar-tint": "tint.grammar",
    "bold on $own-tint": "tint.own",
    "underline": "step",
    "bold $secondary": "assistant",
    "bold $accent": "system bar",
    "bold $error": "error",
}
LOOKS = {name: look for look, names in _NAMES_BY_LOOK.items() for name in names.split()}


class Palette:
    """Rich styles of a theme, by names separated by spaces; unknown names add nothing."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._is_ansi = variables["text-muted"].startswith("ansi")
        if not self._is_ansi:  # the theme's text is readable on its tints
            self._variables |= dict.fromkeys(("dflash", "lookup", "grammar"), variables["foreground"])
        self._styles: dict[str, Style] = {}

    def __getitem__(self, names: str) -> Style:
        """Combine the styles of all names, later ones over earlier ones."""
        if names not in self._styles:
            looks = [LOOKS.get(name, "") for name in names.split()]
            if self._is_ansi:
                looks = [look.replace("$text-muted", "dim") for look in looks]
            styles = [parse_style(look, self._variables).rich_style for look in looks if look]
            self._styles[names] = Style.combine([Style.null(), *styles])
        return self._styles[names]


LINK = "localdflash_link"  # key of the URL in a style's meta
_SAFE = ("http://", "https://", "mailto:")


@dataclass(frozen=True, slots=True)
class Painter:
    """Painter of rows, with the palette, the background and the style of a selection."""

    palette: Palette
    base: Style
    selection: Style
    edge: int = 0  # cell at which the background of code ends

    def strip(
        self, line: Line, index: int, offset: int, selected: tuple[int, int] | None, gutter: StyledRun, width: int
    ) -> Strip:
        """Return a row of the entry at `index` whose text begins at `offset`; `selected` is a range of offsets."""
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
        end = Segment("", _position_meta(index, offset))  # position of the mouse to the right of the text
        return Strip([*strip, end], width)

    def _decoration(self, run: StyledRun, index: int, offset: int) -> Iterator[Segment]:
        """Yield a segment for each character, all with the offset at which the row's text begins."""
        style = self.base + self.palette[run.style] + _position_meta(index, offset)
        return (Segment(character, style) for character in run.text)

    def _text(self, run: StyledRun, index: int, offset: int, selected: tuple[int, int]) -> Iterator[Segment]:
        style = self.base + self.palette[run.style]
        size = len(run.text)
        low, high = (max(0, min(limit - offset, size)) for limit in selected)
        for start, end, marked in ((0, low, False), (low, high, True), (high, size, False)):
            if end > start:
                look = style + self.selection if marked else style
                yield Segment(run.text[start:end], look + _position_meta(index, offset + start, run.link))


def _position_meta(index: int, offset: int, link: str = "") -> Style:
    meta: dict[str, object] = {"offset": (offset, index)}
    if link.lower().startswith(_SAFE):
        meta[LINK] = link
    return Style.from_meta(meta)
