"""The themes of the chat, with a colour for each drafter.

Every theme has the variables `dflash`, `lookup`, `grammar` and `own` (text, WCAG AA on the theme's backgrounds) and the
same names with `-tint` (a background on which the theme's text is AA). The ANSI themes take the terminal's own 16
colours and have no tints: there the text's colour carries the meaning.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from textual.app import App
from textual.theme import BUILTIN_THEMES, Theme

DEFAULT = "localdflash-dark"

_ANSI = {"dflash": "ansi_cyan", "lookup": "ansi_yellow", "grammar": "ansi_magenta", "own": "ansi_default"}
_NO_TINTS = {f"{name}-tint": "ansi_default" for name in _ANSI}

# For `App.get_theme_variable_defaults`: what a theme of Textual's own has, so that no style sheet lacks a variable.
VARIABLE_DEFAULTS: Mapping[str, str] = {**_ANSI, **_NO_TINTS}

_DARK = Theme(
    name="localdflash-dark",
    dark=True,
    background="#14171c",
    surface="#1b1f26",
    panel="#232831",
    foreground="#d9dee6",
    primary="#7fb4e6",
    secondary="#86c7b8",
    accent="#c9a6e8",
    warning="#e5b567",
    error="#f28b82",
    success="#8fcb8f",
    variables={
        "text-muted": "#9da8b7",
        "block-cursor-background": "#233b53",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#232831",
        "block-cursor-blurred-foreground": "#d9dee6",
        "border": "#7fb4e6",
        "border-blurred": "#3a424e",
        "input-selection-background": "#2b4a68",
        "button-color-foreground": "#14171c",
        "scrollbar": "#3a424e",
        "scrollbar-background": "#1b1f26",
        "dflash": "#6cc4d8",
        "lookup": "#e3b341",
        "grammar": "#c9a6e8",
        "own": "#9da8b7",
        "dflash-tint": "#17404b",
        "lookup-tint": "#473710",
        "grammar-tint": "#3c2c52",
        "own-tint": "#14171c",
    },
)

_LIGHT = Theme(
    name="localdflash-light",
    dark=False,
    background="#fbfbf9",
    surface="#f2f2ee",
    panel="#e8e8e3",
    foreground="#1f2328",
    primary="#0b5cad",
    secondary="#0f665a",
    accent="#7a3fa0",
    warning="#7d5200",
    error="#b3261e",
    success="#1f6b33",
    variables={
        "text-muted": "#555d67",
        "block-cursor-background": "#bcd8f3",
        "block-cursor-foreground": "#10151b",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#e8e8e3",
        "block-cursor-blurred-foreground": "#1f2328",
        "border": "#0b5cad",
        "border-blurred": "#b9bcb6",
        "input-selection-background": "#bcd8f3",
        "button-color-foreground": "#ffffff",
        "scrollbar": "#b9bcb6",
        "scrollbar-background": "#f2f2ee",
        "dflash": "#0b6074",
        "lookup": "#7d5200",
        "grammar": "#7a3fa0",
        "own": "#555d67",
        "dflash-tint": "#bfe6ee",
        "lookup-tint": "#f5dfa5",
        "grammar-tint": "#e6d3f3",
        "own-tint": "#fbfbf9",
    },
)


def _of_the_terminal(name: str) -> Theme:
    builtin = BUILTIN_THEMES[name]
    return replace(builtin, variables={**builtin.variables, **VARIABLE_DEFAULTS})


# By name, in the order in which they are offered; an app registers them all.
THEMES: Mapping[str, Theme] = {
    theme.name: theme for theme in (_DARK, _LIGHT, _of_the_terminal("ansi-dark"), _of_the_terminal("ansi-light"))
}


def register(app: App[Any]) -> None:
    """Register all themes with an app."""
    for theme in THEMES.values():
        app.register_theme(theme)
