"""The themes of the chat, with a colour for each drafter, and their versions for terminals of 256 colours.

Every theme has the variables `dflash`, `lookup`, `grammar` and `own` (text, WCAG AA on the theme's backgrounds) and the
same names with `-tint` (a background on which the theme's text is AA); `success` and `error` have tints of their own
for the lines of a diff, in their colour. The ANSI themes take the terminal's own 16 colours and have no tints: there
the text's colour carries the meaning.

In 256 colours, each colour becomes the available one that looks most like it and can be read. What a terminal library
does by itself, cell by cell, takes dark greys with a trace of blue for navy.
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
_DIFF_TINT_SHARE = 0.12  # of its colour in a diff's line

# For `App.get_theme_variable_defaults`: what a theme of Textual's own has, so that no style sheet lacks a variable.
VARIABLE_DEFAULTS: Mapping[str, str] = {**_ANSI, **_NO_TINTS}


def _own(
    name: str,
    grounds: tuple[str, str, str],
    texts: tuple[str, str],
    colours: tuple[str, str, str, str, str, str],
    lines: tuple[str, str, str],
    drafters: tuple[str, str, str],
    tints: tuple[str, str, str],
    *,
    dark: bool = True,
) -> Theme:
    """Return a theme of ours.

    `grounds`: background, surface, panel. `texts`: plain and muted. `colours`: primary, secondary, accent, warning,
    error, success. `lines`: the row of a cursor, what is selected, a border without focus. `drafters` and `tints`:
    DFlash, lookup, grammar.
    """
    background, surface, panel = grounds
    foreground, muted = texts
    primary, secondary, accent, warning, error, success = colours
    cursor, selection, border = lines
    own = dict(zip(("dflash", "lookup", "grammar"), drafters, strict=True))
    tinted = dict(zip(("dflash-tint", "lookup-tint", "grammar-tint"), tints, strict=True))
    return Theme(
        name=f"localdflash-{name}",
        dark=dark,
        background=background,
        surface=surface,
        panel=panel,
        foreground=foreground,
        primary=primary,
        secondary=secondary,
        accent=accent,
        warning=warning,
        error=error,
        success=success,
        variables={
            "text-muted": muted,
            "block-cursor-background": cursor,
            "block-cursor-foreground": "#ffffff" if dark else "#10151b",
            "block-cursor-text-style": "none",
            "block-cursor-blurred-background": panel,
            "block-cursor-blurred-foreground": foreground,
            "border": primary,
            "border-blurred": border,
            "input-selection-background": selection,
            "button-color-foreground": background if dark else "#ffffff",
            "scrollbar": border,
            "scrollbar-background": surface,
            **own,
            "own": muted,
            **tinted,
            "own-tint": background,
            "success-tint": _mixed(surface, success),
            "error-tint": _mixed(surface, error),
        },
    )


def _mixed(ground: str, colour: str) -> str:
    return Color.parse(ground).blend(Color.parse(colour), _DIFF_TINT_SHARE).hex.lower()


_OWN = (
    _own(
        "dark",
        ("#14171c", "#1b1f26", "#232831"),
        ("#d9dee6", "#9da8b7"),
        ("#7fb4e6", "#86c7b8", "#c9a6e8", "#e5b567", "#f28b82", "#8fcb8f"),
        ("#233b53", "#2b4a68", "#3a424e"),
        ("#6cc4d8", "#e3b341", "#c9a6e8"),
        ("#17404b", "#473710", "#3c2c52"),
    ),
    _own(
        "light",
        ("#fbfbf9", "#f2f2ee", "#e8e8e3"),
        ("#1f2328", "#555d67"),
        ("#0b5cad", "#0f665a", "#7a3fa0", "#7d5200", "#b3261e", "#1f6b33"),
        ("#bcd8f3", "#bcd8f3", "#b9bcb6"),
        ("#0b6074", "#7d5200", "#7a3fa0"),
        ("#bfe6ee", "#f5dfa5", "#e6d3f3"),
        dark=False,
    ),
    _own(
        "dusk",
        ("#1d1a26", "#252131", "#2e293c"),
        ("#e6e0f0", "#b3a9c6"),
        ("#c4a7f0", "#8fd0c0", "#f0a8c8", "#ecc48d", "#f7918c", "#a3d79a"),
        ("#40325e", "#4a3b6b", "#4a4360"),
        ("#86cfe0", "#ecc06a", "#f0a8c8"),
        ("#1d4853", "#4f3d16", "#552c49"),
    ),
    _own(
        "sand",
        ("#faf4e6", "#f3ebd8", "#eae0c9"),
        ("#2b2620", "#5c5444"),
        ("#8a3b00", "#0f5f57", "#7d2f6b", "#6f4a00", "#a8231a", "#2c6118"),
        ("#f0d3a8", "#f0d3a8", "#c9bda2"),
        ("#0b5a6b", "#6f4a00", "#7d2f6b"),
        ("#c3e3df", "#f2d98c", "#ecd0e4"),
        dark=False,
    ),
    _own(
        "contrast",
        ("#000000", "#0c0c0c", "#1c1c1c"),
        ("#ffffff", "#d0d0d0"),
        ("#5fd7ff", "#5fffd7", "#ffafff", "#ffd75f", "#ff8787", "#87ff87"),
        ("#00405f", "#00505f", "#8a8a8a"),
        ("#5fd7ff", "#ffd75f", "#ffafff"),
        ("#004a52", "#4a3c00", "#4a004a"),
    ),
)


def _of_the_terminal(name: str) -> Theme:
    builtin = BUILTIN_THEMES[name]
    return replace(builtin, variables={**builtin.variables, **VARIABLE_DEFAULTS})


# By name, in the order in which they are offered; an app registers them all.
THEMES: Mapping[str, Theme] = {
    theme.name: theme for theme in (*_OWN, _of_the_terminal("ansi-dark"), _of_the_terminal("ansi-light"))
}


def register(app: App[Any]) -> None:
    """Register all themes with an app, in the colours that its terminal has."""
    few = app.console.color_system == "256"
    for theme in THEMES.values():
        app.register_theme(for_256(theme) if few and not theme.ansi else theme)


MIN_CONTRAST = 4.5  # contrast, as WCAG AA asks for
_GROUNDS = ("background", "surface", "panel")
_TEXTS = ("foreground", "primary", "secondary", "accent", "warning", "error", "success")
_VARIABLES = ("text-muted", "dflash", "lookup", "grammar", "own")  # that are texts
_STEPS = (0, 95, 135, 175, 215, 255)
_CANDIDATE_COLOURS = [(r, g, b) for r in _STEPS for g in _STEPS for b in _STEPS] + [(g, g, g) for g in range(256)]


def for_256(theme: Theme) -> Theme:
    """Return the theme in colours that such a terminal has."""
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
    able = [one for one in _shown() if beside is None or _contrast(one[1], _downgraded(*beside.rgb)) >= MIN_CONTRAST]
    return Color(*min(able, key=lambda one: _distance(one[2], wanted, weight))[0]).hex.lower()


@cache
def _shown() -> list[tuple[tuple[int, int, int], Color, Lab]]:
    """Colours, and what is shown of them, each of the 256 once."""
    shown = {_downgraded(*rgb): rgb for rgb in _CANDIDATE_COLOURS}
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
