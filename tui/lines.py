"""What is drawn of a text: lines made of runs, safe to show and exactly as wide as they say.

The text of a run is sanitised and has no line feeds or tabs. Runs name styles, never colours; themes map one to the
other.
"""

from dataclasses import dataclass

from rich.cells import cell_len

STYLES: tuple[str, ...] = (
    "strong",
    "emphasis",
    "strike",
    "code",
    "link",
    "heading1",
    "heading2",
    "heading3",
    "heading4",
    "heading5",
    "heading6",
    "quote",
    "bullet",
    "table",
    "rule",
    "muted",
    "fence",
    "fence-label",
    "syntax.keyword",
    "syntax.string",
    "syntax.comment",
    "syntax.number",
    "syntax.function",
    "syntax.type",
    "syntax.operator",
    "syntax.name",
    "syntax.error",
    "syntax.inserted",
    "syntax.deleted",
    "syntax.heading",
)


@dataclass(frozen=True, slots=True)
class StyledRun:
    """A piece of one line in one style: names of STYLES separated by spaces. `link` is an http, https or mailto URL."""

    text: str
    style: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the screen.

    decoration: how many leading runs are bars, bullets and gutters, which copying leaves out. joined: None if a line
    feed follows when copied; otherwise the text that wrapping swallowed ("" or " "), and the next Line continues the
    same logical line.
    """

    runs: tuple[StyledRun, ...] = ()
    decoration: int = 0
    joined: str | None = None

    @property
    def text(self) -> str:
        """The text of all runs, decoration included."""
        return "".join(run.text for run in self.runs)

    @property
    def width(self) -> int:
        """The width in cells."""
        return sum(cell_len(run.text) for run in self.runs)
