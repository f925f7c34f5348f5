"""The user's code, shell commands and instructions, search and quitting in the whole app, by keys and commands."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localdflash.chat import project
from localdflash.chat.answerer import AnswerPiece, Done
from localdflash.chat.applying import apply_proposals
from localdflash.chat.proposals import FileProposal
from tests.support.fake_answerer import NUMBERS
from tests.tui.chat_stage import ask_and_wait, chat, command, screen_text, type_and_send, wait_until

BOX = "def area(width, height):\n    return width + height\n"
DIFF = "```diff\n--- a/box.py\n+++ b/box.py\n@@ -1,2 +1,2 @@\n def area(width, height):\n-    return width + height\n"
CHANGE = (AnswerPiece(f"{DIFF}+    return width * height\n```\n"), Done("stop", NUMBERS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "box.py").write_text(BOX)
    return folder


@pytest.mark.parametrize("how", ["/attach box.py", "@box.py"])
async def test_file_is_attached(how: str, folder: Path) -> None:
    async with chat(folder=folder) as (pilot, app, answerer):
        if how.startswith("/"):
            await command(pilot, how)
            await wait_until(pilot, lambda: bool(app.prompt.attachments))
            await ask_and_wait(pilot)
        else:
            app.prompt.text = "why is @box.py wrong?"
            app.prompt.move_cursor(app.prompt.document.end)
            await pilot.press("enter")
            await wait_until(pilot, lambda: len(app.talk.messages) == 2 and bool(app.talk.messages[-1].finish))
        (attachment,) = answerer.requests[-1][0][0].attachments
        assert (attachment.name, attachment.text) == ("box.py", BOX)
        assert "box.py" in screen_text(app)
        assert not app.prompt.attachments


async def test_change_is_applied_and_undone(folder: Path) -> None:
    async with chat(*CHANGE, folder=folder) as (pilot, app, _answerer):
        await ask_and_wait(pilot)
        await command(pilot, "/apply")
        await wait_until(pilot, lambda: app.is_covered and "return width * height" in screen_text(app))
        assert (folder / "box.py").read_text() == BOX
        await pilot.press("enter")
        await wait_until(pilot, lambda: not app.is_covered)
        await wait_until(pilot, lambda: "changed: box.py; /undo reverts it" in screen_text(app))
        assert (folder / "box.py").read_text() == BOX.replace("+ height", "* height")
        await command(pilot, "/undo")
        await wait_until(pilot, lambda: "Undo the change?" in screen_text(app))
        await pilot.press("y")
        await wait_until(pilot, lambda: "restored: box.py" in screen_text(app))
        assert (folder / "box.py").read_text() == BOX
        await command(pilot, "/undo")
        await wait_until(pilot, lambda: "nothing to undo" in screen_text(app))


async def test_undo_of_a_change_that_was_reverted(folder: Path) -> None:
    async with chat(folder=folder) as (pilot, app, _answerer):
        apply_proposals([FileProposal("box.py", BOX.encode(), b"x = 1\n")], await app.journal())
        (folder / "box.py").write_text(BOX)
        await command(pilot, "/undo")
        await wait_until(pilot, lambda: "Restore box.py" in screen_text(app))
        await pilot.press("y")
        await wait_until(pilot, lambda: "no change to undo" in screen_text(app))


async def test_diff_without_changes(folder: Path) -> None:
    async with chat(folder=folder) as (pilot, app, _answerer):
        await command(pilot, "/diff")
        await wait_until(pilot, lambda: "this chat has no answer yet" in screen_text(app))
        await ask_and_wait(pilot)
        await command(pilot, "/diff")
        await wait_until(pilot, lambda: "changes no file" in screen_text(app))


@pytest.mark.parametrize(
    ("how", "copied"),
    [("/copy 1", "why?"), ("alt+y", "two()\n"), ("/code 1", "one()\n")],
)
async def test_copy_answers_and_code_blocks(how: str, copied: str) -> None:
    async with chat(AnswerPiece("Two:\n\n```python\none()\n```\n\n```\ntwo()\n```\n"), Done("stop", NUMBERS)) as (
        pilot,
        app,
        _answerer,
    ):
        await ask_and_wait(pilot)
        await (command(pilot, how) if how.startswith("/") else pilot.press(how))
        await wait_until(pilot, lambda: app.clipboard == copied)
        await wait_until(pilot, lambda: "opy" in screen_text(app))


SHELL = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")


@SHELL
async def test_shell_command_runs_after_confirmation(folder: Path) -> None:
    async with chat(folder=folder) as (pilot, app, _answerer):
        await type_and_send(pilot, "!touch made; echo one @two")
        await wait_until(pilot, lambda: "Run this command?" in screen_text(app))
        assert "touch made; echo one @two" in screen_text(app)
        await pilot.press("enter")  # the safe answer
        await wait_until(pilot, lambda: app.prompt.text == "!touch made; echo one @two")
        assert not (folder / "made").exists()
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.is_covered)
        await pilot.press("y")
        await wait_until(pilot, lambda: bool(app.prompt.attachments))
        assert (folder / "made").exists()
        assert "is attached to your next message" in screen_text(app)
        await ask_and_wait(pilot, "why?")
        (output,) = app.talk.messages[0].attachments
        assert (output.kind, output.text) == ("output", "one @two\n")
        await pilot.press("up")
        await wait_until(pilot, lambda: app.prompt.text == "why?")
        assert app.prompt.attachments == (output,)


@SHELL
async def test_esc_ends_a_shell_command(folder: Path) -> None:
    async with chat(folder=folder) as (pilot, app, _answerer):
        await type_and_send(pilot, "!sleep 60")
        await wait_until(pilot, lambda: app.is_covered)
        await pilot.press("y")
        await wait_until(pilot, lambda: "running sleep 60" in screen_text(app))
        await type_and_send(pilot, "!echo two")
        await wait_until(pilot, lambda: "a command is running" in screen_text(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: "the command was ended" in screen_text(app))
        assert app.prompt.attachments == ()


@contextmanager
def _suspended() -> Iterator[None]:
    yield


@SHELL
async def test_message_is_edited_in_the_editor(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "my editor"
    editor.write_text("#!/bin/sh\nkill -INT $PPID; cat $2 > seen; printf 'one\\ntwo\\n' > $2\n")  # Ctrl-C in the editor
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", f"'{editor}' -x")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.chdir(tmp_path)
    async with chat(folder=folder) as (pilot, app, _answerer):
        monkeypatch.setattr(app, "suspend", _suspended)
        await pilot.press("z", "f7")
        await wait_until(pilot, lambda: app.prompt.text == "one\ntwo")
        assert (tmp_path / "seen").read_text() == "z"
        monkeypatch.setenv("EDITOR", "false")
        await pilot.press("f7")
        await wait_until(pilot, lambda: "your message is unchanged" in screen_text(app))
        assert app.prompt.text == "one\ntwo"
        monkeypatch.setenv("EDITOR", "/no/such/editor")
        await pilot.press("f7")
        await wait_until(pilot, lambda: "cannot be run" in screen_text(app))
        monkeypatch.delenv("EDITOR")
        await pilot.press("f7")
        await wait_until(pilot, lambda: "set EDITOR" in screen_text(app))


async def test_project_instructions_are_sent_once_allowed(folder: Path, tmp_path: Path) -> None:
    (folder / "AGENTS.md").write_text("Use tabs.\n")
    before = "Instructions of this project (AGENTS.md):\n\nUse tabs."
    async with chat(folder=folder, chats=tmp_path / "chats.db") as (pilot, app, answerer):
        await wait_until(pilot, lambda: "/project on includes it" in screen_text(app))
        await ask_and_wait(pilot)
        assert answerer.requests[-1][1] == ""
        await command(pilot, "/project on")
        await wait_until(pilot, lambda: "from the next answer on" in screen_text(app))
        await command(pilot, "/system Be brief.")
        await wait_until(pilot, lambda: app.talk.system == "Be brief.")
        await ask_and_wait(pilot)
        assert answerer.requests[-1][1] == f"{before}\n\nBe brief."
    async with chat(folder=folder, chats=tmp_path / "chats.db") as (pilot, app, answerer):
        await wait_until(pilot, lambda: app.talk.project == before)
        await command(pilot, "/project off")
        await wait_until(pilot, lambda: "is not included" in screen_text(app))
        await command(pilot, "/project maybe")
        await wait_until(pilot, lambda: "expected on or off" in screen_text(app))
        await ask_and_wait(pilot)
        assert answerer.requests[-1][1] == ""
    found = project.find_project_file(folder)
    assert found
    assert found.allowed is False


async def test_find_searches_upwards() -> None:
    async with chat() as (pilot, app, _answerer):
        for number in range(3):
            await ask_and_wait(pilot, f"Needle {number}? " + "word " * 90)
        for at in (3, 2, 1):
            await (command(pilot, "/find needle") if at == 3 else pilot.press("ctrl+f"))
            await wait_until(pilot, lambda: f"needle: {at} of 3" in screen_text(app))  # noqa: B023
            await wait_until(pilot, lambda: f"Needle {at - 1}?" in screen_text(app))  # noqa: B023
            assert app.screen.get_selected_text() == "Needle"
        await command(pilot, "/find it is.")
        await wait_until(pilot, lambda: "it is.: 3 of 3" in screen_text(app))
        await command(pilot, "/find nothing like it")
        await wait_until(pilot, lambda: "not found in this chat" in screen_text(app))


async def test_ctrl_d_quits_or_deletes() -> None:
    async with chat() as (pilot, app, _answerer):
        await pilot.press("a", "b", "home", "ctrl+d")
        assert app.prompt.text == "b"
        await pilot.press("ctrl+d", "ctrl+d")
        await wait_until(pilot, lambda: not app.is_running)


async def test_tab_inserts_example_questions(folder: Path) -> None:
    (folder / "box.py").unlink()
    (folder / ".env.py").write_text("x = 1\n")
    (folder / "notes.txt").write_text("x\n")
    (folder / "zip.py").write_text("x = 1\n")
    async with chat(folder=folder) as (pilot, app, _answerer):
        await wait_until(pilot, lambda: "Explain @zip.py" in screen_text(app))
        await pilot.press("tab", "tab")
        assert app.prompt.text == "Explain @zip.py"
        await pilot.press("tab", "tab")
        assert app.prompt.text == app.welcome.examples[0].text
        await pilot.press("x", "tab")
        assert app.prompt.text == app.welcome.examples[0].text + "x"
        assert not app.prompt.has_focus
        await pilot.click(app.welcome.examples[0])
        await wait_until(pilot, lambda: app.prompt.text.startswith("Write a Python function"))
