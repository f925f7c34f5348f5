"""Themes in 256 colours: what a terminal shows of them can be read, and greys stay grey."""

import pytest
from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.color import Color

from localdflash.tui.themes import THEMES, for_256, nearest
from tests.tui.test_themes import DRAFTERS, OWN, PAIRS, contrast

LEGEND = [(name, f"{name}-tint") for name in DRAFTERS]  # a word of each, beside what it means


def shown(value: str) -> str:
    """What a terminal of 256 colours makes of it."""
    found = RichColor.from_rgb(*Color.parse(value).rgb).downgrade(ColorSystem.EIGHT_BIT).get_truecolor()
    return f"#{found.red:02x}{found.green:02x}{found.blue:02x}"


@pytest.mark.parametrize("theme", OWN)
def test_what_is_shown_can_be_read(theme: str) -> None:
    few = for_256(THEMES[theme])
    values = {**few.to_color_system().generate(), **few.variables}
    for text, ground in PAIRS:
        least = 3.2 if (text, ground) in LEGEND or text == "warning" else 4.5
        assert contrast(shown(values[text]), shown(values[ground])) >= least, (text, ground)


@pytest.mark.parametrize("theme", OWN)
def test_tints_differ(theme: str) -> None:
    variables = for_256(THEMES[theme]).variables
    assert len({shown(variables[f"{name}-tint"]) for name in DRAFTERS}) == len(DRAFTERS)


def test_dark_greys_stay_grey() -> None:
    for value in ("#14171c", "#1b1f26", "#232831", "#3a424e"):
        red, green, blue = Color.parse(shown(nearest(value))).rgb
        assert red == green == blue
    assert Color.parse(shown("#232831")).rgb[2] > 90  # what is shown without


@pytest.mark.parametrize("value", ["ansi_cyan", "auto 60%", "none", ""])
def test_other_words_stay(value: str) -> None:
    assert nearest(value) == value
