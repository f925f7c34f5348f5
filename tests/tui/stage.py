"""Empty app for the widgets of a test, with the themes of the chat."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from localdflash.tui.themes import DEFAULT, VARIABLE_DEFAULTS, register


class Stage(App[None]):
    """App that shows widgets, or a screen made by `screen`, whose result is appended to `results`."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012

    def __init__(self, *widgets: Widget, screen: Callable[[], Screen[Any]] | None = None) -> None:
        super().__init__()
        self.animation_level = "none"
        register(self)
        self.theme = DEFAULT
        self._widgets = widgets
        self._make = screen
        self.results: list[Any] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(VARIABLE_DEFAULTS)

    def compose(self) -> ComposeResult:
        yield from self._widgets

    def on_mount(self) -> None:
        if self._make is not None:
            self.push_screen(self._make(), self.results.append)


async def wait_until(pilot: Pilot[Any], condition: Callable[[], bool], seconds: float = 20) -> None:
    """Run the app until the condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition never became true:\n{screen_text(pilot.app)}"
        await pilot.pause(0.005)


def screen_text(app: App[Any]) -> str:
    """Return the text on the screen, row by row."""
    width = app.size.width
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip)[:width] for strip in strips)


@asynccontextmanager
async def run_app(app: App[Any], size: tuple[int, int] = (100, 30)) -> AsyncGenerator[Pilot[Any]]:
    """Run an app without a terminal."""
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield pilot


@asynccontextmanager
async def dialog(
    screen: Callable[[], Screen[Any]], size: tuple[int, int] = (100, 30)
) -> AsyncGenerator[tuple[Pilot[Any], Stage]]:
    """Show a dialog; its result is in the app's `results`."""
    app = Stage(screen=screen)
    async with run_app(app, size) as pilot:
        yield pilot, app


async def result_of(screen: Callable[[], Screen[Any]], *keys: str, size: tuple[int, int] = (100, 30)) -> list[Any]:
    """Press keys in a dialog; return its result in a list, or [] if it is still open."""
    async with dialog(screen, size) as (pilot, app):
        await pilot.press(*keys)
        await pilot.pause()
    return app.results
