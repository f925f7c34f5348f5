"""Styles in every theme."""

import pytest
from textual.app import App
from textual.theme import BUILTIN_THEMES, Theme

from localdflash.tui.painting import _LOOKS, Palette
from localdflash.tui.styled_lines import STYLES
from localdflash.tui.themes import THEMES
from localdflash.tui.tints import STEP, TINTS

_ALL = {**BUILTIN_THEMES, **THEMES}


def _palette(theme: Theme) -> Palette:
    app = App[None]()
    app.register_theme(theme)
    app.theme = theme.name
    return Palette(app.get_css_variables())


def test_every_name_that_lines_use_has_a_look() -> None:
    assert set(STYLES) | set(TINTS) | {STEP} <= set(_LOOKS)


@pytest.mark.parametrize("name", _ALL)
def test_every_style_can_be_made_in_every_theme(name: str) -> None:
    palette = _palette(_ALL[name])
    for style in _LOOKS:
        palette[style].render("x")
    assert palette["muted"].color is not None
    assert palette["syntax.keyword"].color != palette["syntax.string"].color


@pytest.mark.parametrize("name", THEMES)
def test_who_proposed_a_token_can_be_told_with_colours_and_without(name: str) -> None:
    palette = _palette(THEMES[name])
    looks = [palette[tint] for tint in TINTS]
    assert len({(look.color, look.bgcolor) for look in looks}) == len(TINTS)
    assert len({(look.bold, look.italic) for look in looks}) == len(TINTS)
    assert palette[f"{TINTS[0]} {STEP}"].underline
    assert palette[f"{TINTS[0]} {STEP}"].bgcolor == palette[TINTS[0]].bgcolor


def test_later_names_win_and_unknown_ones_say_nothing() -> None:
    palette = _palette(THEMES["localdflash-dark"])
    assert palette["syntax.keyword syntax.error"].color == palette["syntax.error"].color
    assert palette["strong nobody-knows"] == palette["strong"]
    assert palette[""].color is None
