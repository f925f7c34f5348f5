"""Themes of the chat, with a colour for each drafter, and their versions for terminals of 256 colours.

The variables `dflash`, `lookup`, `grammar` and `own` are text colours with the contrast of WCAG AA, as is the theme's
text on the same names with `-tint`. The ANSI themes use the terminal's 16 colours and have no tints.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.app import App
from textual.color import Color, Lab, rgb_to_lab
from textual.theme import BUILTIN_THEMES, Theme

DEFAULT = "localdflash-dark"

_ANSI = {"dflash": "ansi_cyan", "lookup": "ansi_yellow", "grammar": "ansi_magenta", "own": "ansi_default"}
_NO_TINTS = {f"{name}-tint": "ansi_default" for name in (*_ANSI, "success", "error")}
_DIFF_TINT_SHARE = 0.12

# For `App.get_theme_variable_defaults`: the style sheets need every variable in Textual's own themes too.
VARIABLE_DEFAULTS: Mapping[str, str] = {**_ANSI, **_NO_TINTS}


# Colours of our themes, in the order of the values below.
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


def _own(name: str) -> Theme:
    """Return one of our themes."""
    first, second = _COLOURS[name]
    fields: dict[str, Any] = dict(zip(_FIELDS.split(), first.split(), strict=True))
    variables = dict(zip(_VARIABLE_FIELDS.split(), second.split(), strict=True))
    dark = name not in ("light", "sand")
    variables |= {
        "block-cursor-foreground": "#ffffff" if dark else "#10151b",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": fields["panel"],
        "block-cursor-blurred-foreground": fields["foreground"],
        "border": fields["primary"],
        "button-color-foreground": fields["background"] if dark else "#ffffff",
        "scrollbar": variables["border-blurred"],
        "scrollbar-background": fields["surface"],
        "own": variables["text-muted"],
        "own-tint": fields["background"],
        "success-tint": _mix(fields["surface"], fields["success"]),
        "error-tint": _mix(fields["surface"], fields["error"]),
    }
    return Theme(name=f"localdflash-{name}", dark=dark, variables=variables, **fields)


def _mix(ground: str, colour: str) -> str:
    return Color.parse(ground).blend(Color.parse(colour), _DIFF_TINT_SHARE).hex.lower()


def _of_the_terminal(name: str) -> Theme:
    builtin = BUILTIN_THEMES[name]
    return replace(builtin, variables={**builtin.variables, **VARIABLE_DEFAULTS})


# By name, in the order in which they are offered.
THEMES: Mapping[str, Theme] = {
    theme.name: theme for theme in (*map(_own, _COLOURS), *map(_of_the_terminal, ("ansi-dark", "ansi-light")))
}


def register(app: App[Any]) -> None:
    """Register all themes with an app, in the colours of its terminal."""
    few = app.console.color_system == "256"
    for theme in THEMES.values():
        app.register_theme(for_256(theme) if few and not theme.ansi else theme)


MIN_CONTRAST = 4.5  # of WCAG AA
_GROUNDS = ("background", "surface", "panel")
_TEXTS = ("foreground", "primary", "secondary", "accent", "warning", "error", "success")
_VARIABLES = ("text-muted", "dflash", "lookup", "grammar", "own")  # that are texts
_STEPS = (0, 95, 135, 175, 215, 255)
_CANDIDATE_COLOURS = [(r, g, b) for r in _STEPS for g in _STEPS for b in _STEPS] + [(g, g, g) for g in range(256)]


def for_256(theme: Theme) -> Theme:
    """Return the theme in the 256 colours of a terminal, each the most similar one that is readable."""
    grounds: dict[str, Any] = {name: nearest(getattr(theme, name)) for name in _GROUNDS}
    texts: dict[str, Any] = {name: nearest(getattr(theme, name), grounds["panel"]) for name in _TEXTS}
    variables = theme.variables | {name: nearest(theme.variables[name], grounds["panel"]) for name in _VARIABLES}
    for name, value in theme.variables.items():
        if name.endswith("-tint"):
            variables[name] = nearest(value, texts["foreground"], tint=True)
        elif name in ("block-cursor-background", "input-selection-background"):
            variables[name] = nearest(value, variables["text-muted"])
        elif name not in _VARIABLES:
            variables[name] = nearest(value)
    variables["own-tint"] = grounds["background"]
    variables |= dict.fromkeys(("success-tint", "error-tint"), grounds["surface"])  # no colour is as faint
    return replace(theme, **grounds, **texts, variables=variables)


@cache
def nearest(value: str, against: str = "", *, tint: bool = False) -> str:
    """Return the most similar of the 256 colours that is readable on `against`; for a `tint` the hue counts most."""
    if not value.startswith("#"):
        return value
    target, weight = rgb_to_lab(Color.parse(value)), 0.3 if tint else 1.0
    ground = _downgraded(*Color.parse(against).rgb) if against else None
    readable = [one for one in _all_256() if ground is None or _contrast(one[1], ground) >= MIN_CONTRAST]
    return Color(*min(readable, key=lambda one: _distance(one[2], target, weight))[0]).hex.lower()


@cache
def _all_256() -> list[tuple[tuple[int, int, int], Color, Lab]]:
    """Return each of the 256 colours once: an RGB value that is shown as it, and the colour shown."""
    displayed = {_downgraded(*rgb): rgb for rgb in _CANDIDATE_COLOURS}
    return [(rgb, colour, rgb_to_lab(colour)) for colour, rgb in displayed.items()]


@cache
def _downgraded(*rgb: int) -> Color:
    displayed = RichColor.from_rgb(*rgb).downgrade(ColorSystem.EIGHT_BIT).get_truecolor()
    return Color(displayed.red, displayed.green, displayed.blue)


def _distance(one: Lab, other: Lab, weight: float) -> float:
    return weight * (one.L - other.L) ** 2 + (one.a - other.a) ** 2 + (one.b - other.b) ** 2


def _contrast(one: Color, other: Color) -> float:
    """Return the contrast of two colours, as WCAG 2 defines it."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@cache
def _luminance(colour: Color) -> float:
    linear = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized)
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
