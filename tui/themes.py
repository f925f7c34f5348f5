"""Themes of the chat, with a colour for each drafter (WCAG AA), and their versions for terminals of 256 colours."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES, Theme

DEFAULT = "localdflash-dark"
COLOURLESS = "ansi-dark"  # under NO_COLOR; see `NoColours`

_ANSI = {"dflash": "ansi_cyan", "lookup": "ansi_yellow", "grammar": "ansi_magenta", "own": "ansi_default"}
_NO_TINTS = {f"{name}-tint": "ansi_default" for name in (*_ANSI, "success", "error")}
_DIFF_TINT_SHARE = 0.12

# For `App.get_theme_variable_defaults`: the style sheets need every variable in Textual's own themes too.
VARIABLE_DEFAULTS: Mapping[str, str] = {**_ANSI, **_NO_TINTS}


# Names of the colours of our themes, in the order of the values below.
_FIELDS = "background surface panel foreground primary secondary accent warning error success"
_VARIABLE_FIELDS = (
    "text-muted block-cursor-background input-selection-background border-blurred "
    "dflash lookup grammar dflash-tint lookup-tint grammar-tint"
)
_COLOURS = {
    "dark": (
        "#14171c #1b1f26 #232831 #d9dee6 #7fb4e6 #86c7b8 #c9a6e8 #e5b567 #f28b82 #8fcb8f",
        "#9da8b7 #233b53 #2b4a68 #3a424e #6cc4d8 #e3b341 #c9a6e8 #17404b #473710 #3c2c52",
    ),
    "light": (
        "#fbfbf9 #f2f2ee #e8e8e3 #1f2328 #0b5cad #0f665a #7a3fa0 #7d5200 #b3261e #1f6b33",
        "#555d67 #bcd8f3 #bcd8f3 #b9bcb6 #0b6074 #7d5200 #7a3fa0 #bfe6ee #f5dfa5 #e6d3f3",
    ),
    "dusk": (
        "#1d1a26 #252131 #2e293c #e6e0f0 #c4a7f0 #8fd0c0 #f0a8c8 #ecc48d #f7918c #a3d79a",
        "#b3a9c6 #40325e #4a3b6b #4a4360 #86cfe0 #ecc06a #f0a8c8 #1d4853 #4f3d16 #552c49",
    ),
    "sand": (
        "#faf4e6 #f3ebd8 #eae0c9 #2b2620 #8a3b00 #0f5f57 #7d2f6b #6f4a00 #a8231a #2c6118",
        "#5c5444 #f0d3a8 #f0d3a8 #c9bda2 #0b5a6b #6f4a00 #7d2f6b #c3e3df #f2d98c #ecd0e4",
    ),
    "contrast": (
        "#000000 #0c0c0c #1c1c1c #ffffff #5fd7ff #5fffd7 #ffafff #ffd75f #ff8787 #87ff87",
        "#d0d0d0 #00405f #00505f #8a8a8a #5fd7ff #ffd75f #ffafff #004a52 #4a3c00 #4a004a",
    ),
}
# Nearest colours of the 256-colour palette with the same contrast.
_COLOURS_256 = {
    "dark": (
        "#191919 #232323 #2d2d2d #e5e5e5 #87afd7 #87d7d7 #d7afff #d7af5f #ff8787 #87d7af",
        "#b2b2b2 #424242 #424242 #4c4c4c #87d7d7 #ffd75f #d7afff #005f5f #5f5f00 #383838",
    ),
    "light": (
        "#ffffff #f9f9f9 #efefef #2d2d2d #005faf #005f5f #5f0087 #875f00 #af0000 #005f00",
        "#606060 #afd7ff #afd7ff #c6c6c6 #005f87 #875f00 #5f0087 #afd7d7 #ffd7af #d7d7ff",
    ),
    "dusk": (
        "#232323 #2d2d2d #383838 #efefef #d7afff #87d7d7 #ffafd7 #d7af87 #ff8787 #afd787",
        "#afafd7 #424242 #5f005f #5f5f87 #87d7d7 #d7af5f #ffafd7 #005f5f #5f5f00 #5f5f87",
    ),
    "sand": (
        "#f9f9f9 #f9f9f9 #d7d7af #2d2d2d #870000 #005f5f #87005f #5f5f00 #870000 #005f00",
        "#606060 #ffd7af #ffd7af #afaf87 #005f5f #5f5f00 #87005f #afd7d7 #ffd787 #ffd7ff",
    ),
    "contrast": (
        "#050505 #0f0f0f #232323 #ffffff #5fd7ff #5fffd7 #ffafff #ffd75f #ff8787 #87ff87",
        "#dbdbdb #005f87 #005f5f #939393 #5fd7ff #ffd75f #ffafff #005f5f #5f5f00 #5f005f",
    ),
}


def make_theme(name: str, *, is_256: bool = False) -> Theme:
    """Return one of our themes; `is_256`: for a terminal of 256 colours."""
    first, second = (_COLOURS_256 if is_256 else _COLOURS)[name]
    fields: dict[str, Any] = dict(zip(_FIELDS.split(), first.split(), strict=True))
    variables = dict(zip(_VARIABLE_FIELDS.split(), second.split(), strict=True))
    dark = name not in ("light", "sand")
    variables |= {
        "block-cursor-foreground": "#ffffff" if dark else "#000000" if is_256 else "#10151b",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": fields["panel"],
        "block-cursor-blurred-foreground": fields["foreground"],
        "border": fields["primary"],
        "button-color-foreground": fields["background"] if dark else "#ffffff",
        "scrollbar": variables["border-blurred"],
        "scrollbar-background": fields["surface"],
        "own": variables["text-muted"],
        "own-tint": fields["background"],
    }
    for kind in ("success", "error"):  # no colour of the 256 is faint enough
        tint = Color.parse(fields["surface"]).blend(Color.parse(fields[kind]), 0.0 if is_256 else _DIFF_TINT_SHARE)
        variables[f"{kind}-tint"] = tint.hex.lower()
    return Theme(name=f"localdflash-{name}", dark=dark, variables=variables, **fields)


def _terminal_theme(name: str) -> Theme:
    builtin = BUILTIN_THEMES[name]
    # Textual's transparent surface would become black behind code.
    return replace(builtin, variables={**builtin.variables, **VARIABLE_DEFAULTS, "surface": "ansi_default"})


# By name, in the order of /theme.
THEMES: Mapping[str, Theme] = {
    theme.name: theme for theme in (*map(make_theme, _COLOURS), *map(_terminal_theme, ("ansi-dark", "ansi-light")))
}


def register(app: App[Any]) -> None:
    """Register all themes with an app, in the colours of its terminal."""
    is_256 = app.console.color_system == "256"
    for theme in THEMES.values():
        app.register_theme(theme if theme.ansi else make_theme(theme.name.removeprefix("localdflash-"), is_256=is_256))


class NoColours(LineFilter):
    """Filter for NO_COLOR: only the terminal's default colours, reversed where `COLOURLESS` highlights text."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """See `LineFilter`."""
        return [Segment(text, style and style + _look(style), control) for text, style, control in segments]


_PLAIN = Style(color="default", bgcolor="default")
_REVERSED = _PLAIN + Style(reverse=True)


def _look(style: Style) -> Style:
    return _REVERSED if style.bgcolor and style.bgcolor.number else _PLAIN  # number 0, black, is used by scrollbars
