"""Your own code: what goes along, what is copied, what is applied. The whole app, by its keys and commands."""

from pathlib import Path

import pytest

from localdflash.chat.answerer import AnswerPiece, Done
from tests.support.fake_answerer import NUMBERS
from tests.tui.chat_stage import answered, chat, command, shown, wait_until

BOX = "def area(width, height):\n    return width + height\n"
DIFF = "```diff\n--- a/box.py\n+++ b/box.py\n@@ -1,2 +1,2 @@\n def area(width, height):\n-    return width + height\n"
CHANGE = (AnswerPiece(f"{DIFF}+    return width * height\n```\n"), Done("stop", NUMBERS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "box.py").write_text(BOX)
    return place


@pytest.mark.parametrize("how", ["/attach box.py", "@box.py"])
async def test_a_file_goes_along(how: str, folder: Path) -> None:
    async with chat(folder=folder) as (pilot, app, answerer):
        if how.startswith("/"):
            await command(pilot, how)
            await wait_until(pilot, lambda: bool(app.prompt.attachments))
            await answered(pilot)
        else:
            app.prompt.text = "why is @box.py wrong?"
            app.prompt.move_cursor(app.prompt.document.end)
            await pilot.press("enter")
            await wait_until(pilot, lambda: len(app.talk.messages) == 2 and bool(app.talk.messages[-1].finish))
        (attachment,) = answerer.asked[-1][0][0].attachments
        assert (attachment.name, attachment.text) == ("box.py", BOX)
        assert "box.py" in shown(app)
        assert not app.prompt.attachments


async def test_a_change_is_applied_and_taken_back(folder: Path) -> None:
    async with chat(*CHANGE, folder=folder) as (pilot, app, _answerer):
        await answered(pilot)
        await command(pilot, "/apply")
        await wait_until(pilot, lambda: app.is_covered and "return width * height" in shown(app))
        assert (folder / "box.py").read_text() == BOX
        await pilot.press("enter")
        await wait_until(pilot, lambda: not app.is_covered)
        await wait_until(pilot, lambda: "changed: box.py; /undo reverts it" in shown(app))
        assert (folder / "box.py").read_text() == BOX.replace("+ height", "* height")
        await command(pilot, "/undo")
        await wait_until(pilot, lambda: "Undo the change?" in shown(app))
        await pilot.press("y")
        await wait_until(pilot, lambda: "as before: box.py" in shown(app))
        assert (folder / "box.py").read_text() == BOX
        await command(pilot, "/undo")
        await wait_until(pilot, lambda: "nothing to undo" in shown(app))


async def test_an_answer_that_changes_nothing(folder: Path) -> None:
    async with chat(folder=folder) as (pilot, app, _answerer):
        await command(pilot, "/diff")
        await wait_until(pilot, lambda: "this chat has no answer yet" in shown(app))
        await answered(pilot)
        await command(pilot, "/diff")
        await wait_until(pilot, lambda: "changes no file" in shown(app))


@pytest.mark.parametrize(
    ("how", "copied"),
    [("/copy 1", "why?"), ("alt+y", "two()\n"), ("/code 1", "one()\n")],
)
async def test_copying(how: str, copied: str) -> None:
    async with chat(AnswerPiece("Two:\n\n```python\none()\n```\n\n```\ntwo()\n```\n"), Done("stop", NUMBERS)) as (
        pilot,
        app,
        _answerer,
    ):
        await answered(pilot)
        await (command(pilot, how) if how.startswith("/") else pilot.press(how))
        await wait_until(pilot, lambda: app.clipboard == copied)
        await wait_until(pilot, lambda: "opy" in shown(app))
