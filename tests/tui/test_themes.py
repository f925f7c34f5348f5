"""Themes and the saved state. Contrast is computed from the definition in WCAG 2.1, not by Textual."""

import itertools
import os
import stat

import pytest
from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.app import App
from textual.color import Color
from textual.theme import Theme

from localdflash.base.errors import LocaldflashError
from localdflash.tui.painting import LOOKS, Palette
from localdflash.tui.saved_state import TuiState, load, save, state_file
from localdflash.tui.themes import DEFAULT, THEMES, VARIABLE_DEFAULTS, make_theme
from localdflash.tui.tints import STEP, TINTS

OWN = [f"localdflash-{name}" for name in ("dark", "light", "dusk", "sand", "contrast")]
DRAFTERS = ["dflash", "lookup", "grammar", "own"]
GROUNDS = ["background", "surface", "panel"]
TEXTS = ["foreground", "text-muted", "primary", "secondary", "accent", "warning", "error", "success", *DRAFTERS]
LEGEND = [(name, f"{name}-tint") for name in DRAFTERS]  # a label in each tint
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


def values_of(theme: Theme) -> dict[str, str]:
    return {**theme.to_color_system().generate(), **theme.variables}


def contrast(one: str, other: str) -> float:
    def linear(channel: float) -> float:
        return channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4

    def luminance(colour: str) -> float:
        red, green, blue = (linear(channel / 255) for channel in Color.parse(colour).rgb)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def in_256_colours(value: str) -> str:
    """Return the colour that a terminal of 256 colours shows."""
    found = RichColor.from_rgb(*Color.parse(value).rgb).downgrade(ColorSystem.EIGHT_BIT).get_truecolor()
    return f"#{found.red:02x}{found.green:02x}{found.blue:02x}"


@pytest.mark.parametrize("theme", OWN)
def test_text_contrast_meets_wcag_aa(theme: str) -> None:
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    values, few = values_of(THEMES[theme]), values_of(make_theme(theme.removeprefix("localdflash-"), is_256=True))
    for text, ground in PAIRS:
        assert contrast(values[text], values[ground]) >= 4.5, (text, ground)
        min_contrast = 3.2 if (text, ground) in LEGEND or text == "warning" else 4.5
        assert contrast(in_256_colours(few[text]), in_256_colours(few[ground])) >= min_contrast, (text, ground)


def test_every_theme_has_every_variable() -> None:
    drafters = {name + end for name in DRAFTERS for end in ("", "-tint")}
    assert {*VARIABLE_DEFAULTS} == drafters | {"success-tint", "error-tint"}
    assert DEFAULT in THEMES
    for theme in THEMES.values():
        assert VARIABLE_DEFAULTS.keys() <= theme.variables.keys()
        assert theme.ansi is theme.name.startswith("ansi-")


def _palette(theme: Theme) -> Palette:
    app = App[None]()
    app.register_theme(theme)
    app.theme = theme.name
    return Palette(app.get_css_variables())


@pytest.mark.parametrize("name", THEMES)
def test_every_theme_resolves_every_style(name: str) -> None:
    palette = _palette(THEMES[name])
    assert set(TINTS) | {STEP} <= set(LOOKS)
    for style in LOOKS:
        palette[style].render("x")
        ground = palette[style].bgcolor
        assert not (THEMES[name].ansi and ground) or ground.is_default
    assert palette["syntax.keyword"].color != palette["syntax.string"].color
    looks = [palette[tint] for tint in TINTS]  # tints differ with and without colours
    assert len({(look.color, look.bgcolor) for look in looks}) == len(TINTS)
    assert len({(look.bold, look.italic) for look in looks}) == len(TINTS)
    assert palette[f"{TINTS[0]} {STEP}"].underline
    assert palette[f"{TINTS[0]} {STEP}"].bgcolor == palette[TINTS[0]].bgcolor


def test_later_styles_win_and_unknown_ones_are_ignored() -> None:
    palette = _palette(THEMES[DEFAULT])
    assert palette["syntax.keyword syntax.error"].color == palette["syntax.error"].color
    assert palette["strong nobody-knows"] == palette["strong"]
    assert palette[""].color is None


def test_saved_state_is_loaded_and_private() -> None:
    for state in (TuiState("localdflash-light", seen_welcome=True), TuiState("ansi-dark")):
        save(state)
        assert load() == state
    assert stat.S_IMODE(state_file().parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"theme": 3, "seen_welcome": "yes"}'])
def test_broken_state_file_counts_as_missing(content: bytes) -> None:
    assert load() == TuiState(DEFAULT, seen_welcome=False)
    save(TuiState("ansi-dark", seen_welcome=True))
    state_file().write_bytes(content)
    assert load() == TuiState()


def test_failed_write_keeps_the_old_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    save(TuiState("ansi-dark"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(LocaldflashError, match="No space left") as failed:
            save(TuiState("ansi-light"))
    assert "\n" not in str(failed.value)
    assert load() == TuiState("ansi-dark")
    assert [path.name for path in state_file().parent.iterdir()] == [state_file().name]
