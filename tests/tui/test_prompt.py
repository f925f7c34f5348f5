"""Prompt: keys, history, sending with files, refused files, and messages that are put back."""

import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message

from localdflash.chat.messages import Attachment
from localdflash.tui.commands import COMMANDS
from localdflash.tui.pastes import MAX_PASTE_CHARS, Paste, PasteParser, clean_paste
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
    desk = Desk(tmp_path)
    async with run_app(desk) as pilot:
        await pilot.press("a", "shift+enter", "b", "enter")
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


@pytest.mark.parametrize("size", [(80, 30), (20, 5)])
async def test_long_text_can_be_undone_and_redone(tmp_path: Path, size: tuple[int, int]) -> None:
    desk, text = Desk(tmp_path), "\n".join(f"line {number}" for number in range(12))
    async with run_app(desk, size) as pilot:
        desk.paste(text)
        await pilot.press("ctrl+z")
        assert desk.prompt.text == ""
        await pilot.press("ctrl+shift+z")
        assert desk.prompt.text == text
        desk.prompt.put_all("")
        await pilot.press("ctrl+z")
        assert desk.prompt.text == text
        assert desk.prompt.cursor_location == desk.prompt.document.end
        await pilot.press("ctrl+shift+z", "ctrl+shift+z")  # the second one has nothing to redo
        assert desk.prompt.text == ""


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
        for path in (".env", "nothing.py"):
            desk.prompt.attach(path)
        await wait_until(pilot, lambda: len(desk.refused) == 2)
        desk.prompt.detach()
        await pilot.pause()
        assert desk.chips == []
        assert "box.py" not in screen_text(desk)


async def test_file_whose_path_begins_with_an_at_sign_is_attached(folder: Path) -> None:
    (folder / "@types").mkdir()
    (folder / "@types" / "x.d.ts").write_text("declare const x: 1;\ndeclare const y: 2;\n")
    desk = Desk(folder)
    async with run_app(desk) as pilot:
        for path in ("@types/x.d.ts", "@types/x.d.ts:1", "@@types/x.d.ts:2"):
            desk.prompt.attach(path)
        await wait_until(pilot, lambda: len(desk.chips) + len(desk.refused) == 3)
        assert set(desk.chips) == {"@types/x.d.ts", "@types/x.d.ts:1", "@types/x.d.ts:2"}


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


async def prompt_after_paste(folder: Path, text: str) -> Desk:
    """Type a word into a prompt, then paste a text."""
    desk = Desk(folder)
    async with run_app(desk, (80, 30)) as pilot:
        await type_in(pilot, "typed ")
        desk.paste(text)
        await pilot.pause()
    return desk


async def test_short_paste_is_inserted(tmp_path: Path) -> None:
    text = "x\r" * 30
    desk = await prompt_after_paste(tmp_path, text)
    assert desk.prompt.text == f"typed {text}".replace("\r", "\n")
    assert desk.chips == []


@pytest.mark.parametrize(
    ("text", "attached"),
    [
        ("x\r\n" * 31, "x\r\n" * 31),
        ("\x1b\u202e" * 1_001, "\x1b\u202e" * 1_001),
    ],
)
async def test_long_paste_is_attached_exactly(tmp_path: Path, text: str, attached: str) -> None:
    desk = await prompt_after_paste(tmp_path, text)
    assert desk.prompt.text == "typed "
    assert [(one.kind, one.name, one.text) for one in desk.prompt.attachments] == [("paste", "pasted 1", attached)]
    assert desk.notices == []


async def test_huge_paste_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with run_app(desk) as pilot:
        await type_in(pilot, "typed ")
        began = time.perf_counter()
        desk.paste("0123456789\n" * 900_000)
        await pilot.pause()
        assert time.perf_counter() - began < 2
        assert desk.refused == ["paste too large (9.4 MB, at most 977 KB); save it to a file and mention parts of it"]
        assert (desk.prompt.text, desk.chips) == ("typed ", [])


async def test_invisible_characters_are_spelled_out_and_reported(tmp_path: Path) -> None:
    desk = await prompt_after_paste(tmp_path, "a\x1b]0;x\x07b\x9b\u202ec\x00\u200d")
    assert desk.prompt.text == "typed a␛]0;x␇b⟦U+009B⟧⟦U+202E⟧c␀⟦U+200D⟧"
    assert desk.notices == ["6 invisible characters spelled out in the pasted text"]


@given(st.text(max_size=60))
def test_cleaned_paste_is_safe_and_complete(text: str) -> None:
    safe, hidden = clean_paste(text)
    assert not any((ord(one) < 0x20 and one not in "\n\t") or 0x7F <= ord(one) < 0xA0 for one in safe)
    assert safe.splitlines() == safe.split("\n")[: len(safe.splitlines())]
    visible = [one for one in text if one.isalnum()]
    assert [one for one in safe if one.isalnum()][: len(visible)] == visible or hidden


async def test_ctrl_v_pastes_the_app_clipboard(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    async with run_app(desk) as pilot:
        desk.copy_to_clipboard("a\x1bb")
        await pilot.press("ctrl+v")
        desk.copy_to_clipboard("x\n" * 40)
        await pilot.press("ctrl+v")
        assert (desk.prompt.text, desk.chips) == ("a␛b", ["pasted 1"])


START, END = "\x1b[200~", "\x1b[201~"


def feed_all(*pieces: str) -> list[Message]:
    parser = PasteParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def describe(found: Iterable[Message]) -> list[str]:
    """Return keys by name and pastes by their raw text."""
    return [
        event.raw if isinstance(event, Paste) else event.key if isinstance(event, events.Key) else repr(event)
        for event in found
    ]


@given(
    st.lists(
        st.text(alphabet="ab\x1b[20~1\x11\r\x9b", max_size=12).filter(lambda one: END not in one + END[:-1]), max_size=3
    ),
    st.data(),
)
def test_paste_parser_ignores_chunk_boundaries(texts: list[str], data: st.DataObject) -> None:
    stream = "k".join(f"{START}{text}{END}" for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [part for text in texts for part in (text, "k")][:-1]
    assert describe(feed_all(*(piece for piece in pieces if piece))) == expected


@pytest.mark.parametrize("keys", ["\x1b[A", "\x1b[13;2u", "\x1b[<0;3;4M", "\x1b[I\x1b[O"])
def test_other_input_goes_to_textual(keys: str) -> None:
    theirs, ours = XTermParser(), PasteParser()
    expected = [repr(event) for character in keys for event in theirs.feed(character)]
    assert [repr(event) for character in keys for event in ours.feed(character)] == expected
    assert [repr(event) for event in feed_all(keys)] == [repr(event) for event in XTermParser().feed(keys)]


def test_ten_megabyte_paste_is_cut() -> None:
    text = "0123456789abcde\n" * 655_360
    stream = f"{START}{text}{END}x"
    parser = PasteParser()
    began = time.perf_counter()
    found = [event for at in range(0, len(stream), 4096) for event in parser.feed(stream[at : at + 4096])]
    assert time.perf_counter() - began < 2
    paste, key = found
    assert isinstance(paste, Paste)
    assert (paste.length, len(paste.raw)) == (len(text), MAX_PASTE_CHARS + 1)
    assert describe([key]) == ["x"]
