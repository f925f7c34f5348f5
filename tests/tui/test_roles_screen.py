import asyncio
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.chat.roles import NONE, roles
from localdflash.tui.screens.roles_screen import RolePicker
from tests.tui.stage import Script, Stage, play, shown

ROLES = {"coder": "You write code.\nShort code.", "mine": "[b]be\x1b kind[/]\n" + "line\n" * 40}


def picking(script: Script, size: tuple[int, int] = (100, 30), given: dict[str, str] = ROLES) -> list[Any]:
    app = Stage(screen=lambda: RolePicker(given))
    asyncio.run(play(app, script, size))
    return app.results


def pressing(*keys: str) -> Script:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press(*keys)
        await pilot.pause()

    return script


@pytest.mark.parametrize(
    ("keys", "result"),
    [(["enter"], NONE), (["down", "enter"], "coder"), (["end", "enter"], "mine"), (["down", "escape"], None)],
)
def test_keys(keys: list[str], result: str | None) -> None:
    assert picking(pressing(*keys)) == [result]


def test_the_text_of_the_highlighted_role_is_shown_and_harmless() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        assert "Short code." not in shown(pilot.app)
        await pilot.press("down")
        await pilot.pause()
        assert "Short code." in shown(pilot.app)
        await pilot.press("down")
        await pilot.pause()
        assert shown(pilot.app).count("[b]be␛ kind[/]") == 2  # in the list, and below it
        await pilot.press("tab", "end")
        await pilot.pause()

    picking(script)


def test_a_click_chooses() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.click("Choices", offset=(3, 2))
        await pilot.pause()

    assert picking(script) == ["coder"]


@pytest.mark.parametrize("size", [(20, 5), (40, 12)])
def test_a_tiny_terminal_and_the_roles_that_come_along(size: tuple[int, int]) -> None:
    assert picking(pressing("down", "enter"), size, roles()) == [next(iter(roles()))]
