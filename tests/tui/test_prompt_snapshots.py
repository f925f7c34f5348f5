"""What the prompt looks like with its list and with attachments, at three widths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.chat.attachable_files import Hit
from tests.tui.desk import Desk, type_in

DARK, LIGHT = "localdflash-dark", "localdflash-light"
LOOKS = ((DARK, (40, 12)), (DARK, (80, 20)), (DARK, (120, 20)), (LIGHT, (80, 20)))  # their order names the pictures
HITS = [
    Hit("src/parser/box.py", marked=(11, 12, 13)),
    Hit("src/parser/box.py:Box", "", (18, 19, 20)),
    Hit("a/very/long/path/that/does/not/fit/into/a/narrow/terminal/box_of_things.md", marked=(58, 59, 60)),
    Hit("文件/box.txt", marked=(3, 4, 5)),
]


@pytest.mark.parametrize(
    ("theme", "size"),
    [pytest.param(*look, marks=() if look == (DARK, (80, 20)) else pytest.mark.slow) for look in LOOKS],
)
@pytest.mark.parametrize("what", ["commands", "files", "chips", "text", "empty"])
def test_prompt(
    snap_compare: Callable[..., bool], tmp_path: Path, what: str, size: tuple[int, int], theme: str
) -> None:
    desk = Desk(tmp_path)
    desk.theme = theme
    desk.files.find = lambda query, limit=30: HITS  # type: ignore[method-assign]

    async def prepare(pilot: Pilot[Any]) -> None:
        match what:
            case "commands":
                await type_in(pilot, "/co")
            case "files":
                await type_in(pilot, "see @box")
                while not desk.suggestions.rows:
                    await pilot.pause(0.01)
                await pilot.press("down")
            case "chips":
                desk.paste("x\n" * 120)
                desk.paste("y" * 4_200)
                desk.paste("z\n" * 3_000)
                await type_in(pilot, "why?")
            case "text":
                desk.paste("\n".join(f"row {number} of a message 你好" for number in range(12)))
        await pilot.pause()

    assert snap_compare(desk, terminal_size=size, run_before=prepare)
