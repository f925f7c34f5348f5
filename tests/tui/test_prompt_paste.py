"""What is pasted: into the text, beside it, or refused; sanitised where it is shown; dropped files."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.tui.pastes import for_prompt, parse_dropped_path
from tests.tui.desk import Desk, type_in
from tests.tui.stage import playing, wait_until

CANARY = "CANARY_c4"


async def pasted(folder: Path, text: str) -> Desk:
    """A prompt into which a word was typed and this text was pasted."""
    desk = Desk(folder)
    async with playing(desk, (80, 30)) as pilot:
        await type_in(pilot, "typed ")
        desk.paste(text)
        await pilot.pause()
    return desk


async def test_short_pastes_are_text(tmp_path: Path) -> None:
    text = "x\r" * 30
    desk = await pasted(tmp_path, text)
    assert desk.prompt.text == f"typed {text}".replace("\r", "\n")
    assert desk.chips == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x\r\n" * 31, "x\r\n" * 31),
        ("\x1b\u202e" * 1_001, "\x1b\u202e" * 1_001),
    ],
)
async def test_long_pastes_are_attached_to_the_byte(tmp_path: Path, text: str, kept: str) -> None:
    desk = await pasted(tmp_path, text)
    assert desk.prompt.text == "typed "
    assert [(one.kind, one.name, one.text) for one in desk.prompt.attachments] == [("paste", "pasted 1", kept)]
    assert desk.told == []


async def test_a_huge_paste_is_refused_at_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with playing(desk) as pilot:
        await type_in(pilot, "typed ")
        begun = time.perf_counter()
        desk.paste("0123456789\n" * 900_000)
        await pilot.pause()
        assert time.perf_counter() - begun < 2
        assert desk.refused == ["9.4 MB pasted: at most 977 KB; save it to a file and mention parts of it"]
        assert (desk.prompt.text, desk.chips) == ("typed ", [])


async def test_characters_that_nobody_sees_are_spelled_out_and_told(tmp_path: Path) -> None:
    desk = await pasted(tmp_path, "a\x1b]0;x\x07b\x9b\u202ec\x00\u200d")
    assert desk.prompt.text == "typed a␛]0;x␇b⟦U+009B⟧⟦U+202E⟧c␀⟦U+200D⟧"
    assert desk.told == ["6 characters that cannot be seen: spelled out in what you pasted"]


@given(st.text(max_size=60))
def test_pasted_text_is_safe_and_nothing_of_it_is_gone(text: str) -> None:
    safe, hidden = for_prompt(text)
    assert not any((ord(one) < 0x20 and one not in "\n\t") or 0x7F <= ord(one) < 0xA0 for one in safe)
    assert safe.splitlines() == safe.split("\n")[: len(safe.splitlines())]
    visible = [one for one in text if one.isalnum()]
    assert [one for one in safe if one.isalnum()][: len(visible)] == visible or hidden


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("'/a/b c.py' ", "/a/b c.py"),
        ("/a/b\\ c.py", "/a/b c.py"),
        ("file:///a/b%20c.py", "/a/b c.py"),
        ("/a/b c.py", "/a/b c.py"),
        ("a/b.py", None),
        ("/a\n/b", None),
        ("file:///a%00b", None),
        ("/" + "a" * 5_000, None),
    ],
)
def test_paths_of_dropped_files(text: str, path: str | None) -> None:
    assert parse_dropped_path(text) == path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a b.py").write_text("x\n")
    (root / ".env").write_text(CANARY)
    (tmp_path / "outside.py").write_text(CANARY)
    return root


async def test_a_dropped_file_is_mentioned(folder: Path) -> None:
    desk = Desk(folder)
    async with playing(desk) as pilot:
        await type_in(pilot, "see ")
        desk.paste(f"'{folder}/a b.py'")
        await wait_until(pilot, lambda: desk.prompt.text == 'see @"a b.py" ')
        assert desk.prompt.cursor_location == (0, len(desk.prompt.text))
        await pilot.press("ctrl+z")
        assert desk.prompt.text == f"see '{folder}/a b.py'"
        await pilot.press("ctrl+shift+z", "enter")
        await wait_until(pilot, lambda: bool(desk.sent))
        assert [one.name for one in desk.sent[0].attachments] == ["a b.py"]


@pytest.mark.parametrize("name", [".env", "../outside.py", "nothing.py"])
async def test_other_paths_stay_text(folder: Path, name: str) -> None:
    desk = Desk(folder)
    async with playing(desk) as pilot:
        desk.paste(f"{folder}/{name}")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        assert desk.prompt.text == f"{folder}/{name}"
        await pilot.press("enter")
        await pilot.pause()
        assert CANARY not in repr(desk.sent)


async def test_pasting_what_was_copied_here(folder: Path) -> None:
    desk = Desk(folder)
    async with playing(desk) as pilot:
        desk.copy_to_clipboard("a\x1bb")
        await pilot.press("ctrl+v")
        desk.copy_to_clipboard("x\n" * 40)
        await pilot.press("ctrl+v")
        assert (desk.prompt.text, desk.chips) == ("a␛b", ["pasted 1"])
