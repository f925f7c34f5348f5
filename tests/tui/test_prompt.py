"""Prompt: keys, history, sending with files, refused files, and messages that are put back."""

from pathlib import Path

import pytest

from localdflash.chat.messages import Attachment
from localdflash.tui.commands import COMMANDS
from tests.tui.desk import Desk, type_in
from tests.tui.stage import run_app, screen_text, wait_until


async def test_app_keys_reach_the_app(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    keys = sorted({key for command in COMMANDS for key in command.keys})
    async with run_app(desk, (60, 20)) as pilot:
        await pilot.press("enter", "space", "enter")  # an empty message is not sent
        assert desk.sent == []
        await pilot.press("backspace")
        await type_in(pilot, "some text")
        await pilot.press(*keys, "pageup", "pagedown")
        await pilot.pause()
        assert desk.keys == [*keys, "page", "page"]
        assert desk.prompt.text == "some text"


async def test_shift_enter_inserts_a_new_line(tmp_path: Path) -> None:
    key = "shift+enter"
    desk = Desk(tmp_path)
    async with run_app(desk) as pilot:
        await pilot.press("a", key, "b", "enter")
        await pilot.pause()
        assert [one.text for one in desk.sent] == ["a\nb"]


async def test_up_and_down_recall_messages(tmp_path: Path) -> None:
    desk = Desk(tmp_path, editable=False)
    async with run_app(desk) as pilot:
        for text in ("one", "two\\\nlines", "three"):
            await type_in(pilot, f"{text}\n")
        await type_in(pilot, "draft")
        seen = []
        for key in ["up"] * 4 + ["down"] * 4:
            await pilot.press(key)
            await pilot.pause()
            seen.append(desk.prompt.text)
        assert seen == ["three", "two\nlines", "one", "one", "two\nlines", "three", "draft", "draft"]


CANARY = "CANARY_77aa"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "box.py").write_text("class Box:\n    def add(self):\n        return 2\n")
    (root / "with space.md").write_text("# words\n")
    (root / ".env").write_text(CANARY)
    (root / "image.png").write_bytes(b"\x89PNG\0\xff")
    return root


async def test_refused_secret_file_keeps_the_message(folder: Path) -> None:
    desk = Desk(folder)
    async with run_app(desk) as pilot:
        desk.paste("x\n" * 40)
        await type_in(pilot, "read @.env ")
        await pilot.press("enter")
        await wait_until(pilot, lambda: bool(desk.refused))
        assert desk.refused == [
            ".env: files of this name hold secrets and are never read; Enter again sends the message without it"
        ]
        assert (desk.sent, desk.prompt.text, desk.chips) == ([], "read @.env ", ["pasted 1"])
        await pilot.press("enter")
        await wait_until(pilot, lambda: bool(desk.sent))
        assert desk.sent[0].text == "read @.env "
        assert [one.name for one in desk.sent[0].attachments] == ["pasted 1"]
        assert CANARY not in repr(desk.sent)
        assert CANARY not in screen_text(desk)


async def test_attach_and_detach(folder: Path) -> None:
    desk = Desk(folder)
    async with run_app(desk) as pilot:
        for path in ("src/box.py", "src/box.py:1-2", '"with space.md"', "@src/box.py"):
            desk.prompt.attach(path)
        await wait_until(pilot, lambda: len(desk.chips) == 3)
        assert set(desk.chips) == {"src/box.py", "src/box.py:1-2", "with space.md"}
        await wait_until(pilot, lambda: "src/box.py 47 bytes" in screen_text(desk))
        for path in (".env", "", "nothing.py"):
            desk.prompt.attach(path)
        await wait_until(pilot, lambda: len(desk.refused) == 3)
        assert "name a file: /attach PATH" in desk.refused
        desk.prompt.detach()
        await pilot.pause()
        assert desk.chips == []
        assert "box.py" not in screen_text(desk)


async def test_put_back_restores_text_and_attachments(folder: Path) -> None:
    desk = Desk(folder)
    attachments = (
        Attachment("file", "src/box.py", "old"),
        Attachment("file", "gone.py", "gone"),
        Attachment("paste", "pasted 1", "x"),
    )
    async with run_app(desk) as pilot:
        await type_in(pilot, "typed")
        desk.prompt.put_back("see @src/box.py \x1b", attachments)
        await pilot.pause()
        assert desk.prompt.text == "see @src/box.py ␛\ntyped"
        assert desk.chips == ["gone.py", "pasted 1"]
        assert not desk.suggestions.display
        await pilot.press("enter")
        await wait_until(pilot, lambda: bool(desk.sent or desk.refused))
        if desk.refused:
            await pilot.press("enter")
            await wait_until(pilot, lambda: bool(desk.sent))
        assert {one.name for one in desk.sent[0].attachments} >= {"gone.py", "pasted 1"}
