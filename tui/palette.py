"""Maps style names to colours of the current theme.

Every colour is accompanied by bold, italic or underlined text, for terminals and eyes that cannot tell colours apart.
"""

from collections.abc import Mapping

from rich.style import Style
from textual.color import Color, ColorParseError

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
    """The styles of one theme, looked up by names separated by spaces. `variables` are the app's theme variables."""

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
        """A colour of the theme, or None. "auto 60%" and the like are mixed from its text and its background."""
        value = self._variables.get(variable, "")
        try:
            colour = Color.parse(value.split(" ")[0])
        except ColorParseError:
            return self._muted() if value.startswith("auto") else None
        return colour if colour.ansi is not None else Color(colour.r, colour.g, colour.b)

    def _muted(self) -> Color | None:
        text, ground = self._colour("foreground"), self._colour("background")
        return ground.blend(text, 0.6) if text and ground else None
