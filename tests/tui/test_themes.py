"""Contrast is computed here from the definition in WCAG 2.1, not by Textual."""

import asyncio
import itertools

import pytest
from textual.app import App, ComposeResult
from textual.color import Color
from textual.widgets import Static

from localdflash.tui.themes import DEFAULT, THEMES, VARIABLE_DEFAULTS, register

OWN = [f"localdflash-{name}" for name in ("dark", "light", "dusk", "sand", "contrast")]
DRAFTERS = ["dflash", "lookup", "grammar", "own"]
GROUNDS = ["background", "surface", "panel"]
TEXTS = ["foreground", "text-muted", "primary", "secondary", "accent", "warning", "error", "success", *DRAFTERS]
PAIRS = [
    *itertools.product(TEXTS, GROUNDS),
    *itertools.product(["foreground"], [f"{name}-tint" for name in DRAFTERS]),
    *((name, f"{name}-tint") for name in (*DRAFTERS, "success", "error")),
    ("block-cursor-foreground", "block-cursor-background"),
    ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
    ("text-muted", "block-cursor-background"),
    ("text-muted", "block-cursor-blurred-background"),
    ("warning", "block-cursor-background"),
    ("foreground", "input-selection-background"),
    *itertools.product(["button-color-foreground"], ["primary", "warning", "error", "success"]),
]


def variables(theme: str) -> dict[str, str]:
    return THEMES[theme].to_color_system().generate() | THEMES[theme].variables


def luminance(color: Color) -> float:
    def linear(channel: float) -> float:
        return channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(channel / 255) for channel in color.rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(Color.parse(one)), luminance(Color.parse(other))))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", OWN)
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_has_the_contrast_of_wcag_aa(theme: str, text: str, ground: str) -> None:
    values = variables(theme)
    assert contrast(values[text], values[ground]) >= 4.5


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", OWN)
def test_tints_differ_from_each_other_and_from_the_ground(theme: str) -> None:
    values = variables(theme)
    tints = [Color.parse(values[f"{name}-tint"]) for name in ("dflash", "lookup", "grammar", "own")]
    for one, other in itertools.combinations(tints, 2):
        assert sum(abs(a - b) for a, b in zip(one.rgb, other.rgb, strict=True)) > 40


@pytest.mark.parametrize("theme", THEMES)
def test_every_theme_has_every_variable(theme: str) -> None:
    drafters = {name + end for name in DRAFTERS for end in ("", "-tint")}
    assert {*VARIABLE_DEFAULTS} == drafters | {"success-tint", "error-tint"}
    assert VARIABLE_DEFAULTS.keys() <= THEMES[theme].variables.keys()


def test_the_default_is_among_them_and_so_are_textuals_ansi_themes() -> None:
    assert DEFAULT in THEMES
    assert THEMES["ansi-dark"].ansi
    assert THEMES["ansi-light"].ansi
    assert not THEMES["ansi-light"].dark


class Tinted(App[None]):
    CSS = "Static { color: $dflash; background: $lookup-tint; } #own { color: $own; background: $grammar-tint; }"

    def __init__(self) -> None:
        super().__init__()
        register(self)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(VARIABLE_DEFAULTS)

    def compose(self) -> ComposeResult:
        yield Static("drafted", markup=False)
        yield Static("own", id="own", markup=False)


def test_all_of_them_and_textuals_own_can_be_put_on() -> None:
    async def put_on() -> None:
        app = Tinted()
        async with app.run_test() as pilot:
            for theme in [*THEMES, "nord", "textual-light"]:
                app.theme = theme
                await pilot.pause()
                expected = THEMES[theme].variables["dflash"] if theme in THEMES else VARIABLE_DEFAULTS["dflash"]
                assert app.query(Static).first().styles.color == Color.parse(expected)

    asyncio.run(put_on())
