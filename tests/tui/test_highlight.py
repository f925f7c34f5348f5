"""Styles of highlighted code."""

from localdflash.tui import highlight
from localdflash.tui.painting import LOOKS


def test_every_style_has_a_look() -> None:
    assert {f"syntax.{name}" for name in highlight._STYLES.values()} <= set(LOOKS)
