"""Themes for terminals of 256 colours: each colour becomes the one of them that looks most like it and can be read.

What a terminal library does by itself, cell by cell, takes dark greys with a trace of blue for navy.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.color import Color, Lab, rgb_to_lab
from textual.theme import Theme

READABLE = 4.5  # contrast, as WCAG AA asks for
_GROUNDS = ("background", "surface", "panel")
_TEXTS = ("foreground", "primary", "secondary", "accent", "warning", "error", "success")
_VARIABLES = ("text-muted", "dflash", "lookup", "grammar", "own")  # that are texts
_STEPS = (0, 95, 135, 175, 215, 255)
_TRIED = [(r, g, b) for r in _STEPS for g in _STEPS for b in _STEPS] + [(g, g, g) for g in range(256)]


def for_256(theme: Theme) -> Theme:
    """The theme in colours that such a terminal has."""
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
    """A colour that is shown as the one of the 256 that is most like this, all as hexadecimal digits; other words stay.

    It can be read on, or under, `against`. A `tint` is told by its hue: lightness counts less.
    """
    if not value.startswith("#"):
        return value
    wanted, weight = rgb_to_lab(Color.parse(value)), 0.3 if tint else 1.0
    beside = Color.parse(against) if against else None
    able = [one for one in _shown() if beside is None or _contrast(one[1], _downgraded(*beside.rgb)) >= READABLE]
    return Color(*min(able, key=lambda one: _distance(one[2], wanted, weight))[0]).hex.lower()


@cache
def _shown() -> list[tuple[tuple[int, int, int], Color, Lab]]:
    """Colours, and what is shown of them, each of the 256 once."""
    shown = {_downgraded(*rgb): rgb for rgb in _TRIED}
    return [(rgb, colour, rgb_to_lab(colour)) for colour, rgb in shown.items()]


@cache
def _downgraded(*rgb: int) -> Color:
    shown = RichColor.from_rgb(*rgb).downgrade(ColorSystem.EIGHT_BIT).get_truecolor()
    return Color(shown.red, shown.green, shown.blue)


def _distance(one: Lab, other: Lab, weight: float) -> float:
    return weight * (one.L - other.L) ** 2 + (one.a - other.a) ** 2 + (one.b - other.b) ** 2


def _contrast(one: Color, other: Color) -> float:
    """As WCAG 2 defines it."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@cache
def _luminance(colour: Color) -> float:
    linear = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized)
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
