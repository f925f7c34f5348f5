"""Dialog of proposed changes: its rows, its keys, and the proposals that it applies."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.chat.applying import ApplyResult
from localdflash.chat.file_text import make_hunks
from localdflash.chat.proposals import FileProposal
from localdflash.tui.screens.diff_screen import MAX_LINE_CHARS, DiffScreen, clean_line
from tests.tui.stage import Stage, dialog, screen_text, wait_until

OLD = "".join(f"line {number}\n" for number in range(1, 41)).encode()
NEW = OLD.replace(b"line 7\n", b"line seven\n\tand more\n").replace(b"line 30\n", b"")


def change(path: str, before: bytes | None, after: bytes | None) -> FileProposal:
    kind = "new" if before is None else "delete" if after is None else "change"
    return FileProposal(path, before, after, kind, make_hunks(before, after))  # type: ignore[arg-type]


BOX = change("src/box.py", OLD, NEW)
FRESH = change("src/new.py", None, b"x = 1\n")
GONE = change("gone.py", b"x\n", None)
BAD = FileProposal("bad.py", None, None, problem="hunk 1 of 1 fits nowhere: the file has no line 'abc'")
ALL = [BOX, FRESH, GONE, BAD]


class Writer:
    """Fake of `apply` that records its arguments."""

    def __init__(self, *outcomes: ApplyResult) -> None:
        self.applied: list[list[FileProposal]] = []
        self._outcomes = list(outcomes)

    def apply(self, chosen: Sequence[FileProposal]) -> ApplyResult:
        self.applied.append(list(chosen))
        return self._outcomes.pop(0) if self._outcomes else ApplyResult(tuple(chosen))


def open_diff(
    proposals: Sequence[FileProposal] = ALL, writer: Writer | None = None, size: tuple[int, int] = (80, 24)
) -> AbstractAsyncContextManager[tuple[Pilot[Any], Stage]]:
    return dialog(lambda: DiffScreen(proposals, (writer or Writer()).apply), size)


async def screen_after(*keys: str, proposals: Sequence[FileProposal] = ALL, size: tuple[int, int] = (80, 24)) -> str:
    async with open_diff(proposals, size=size) as (pilot, app):
        await pilot.press(*keys)
        await pilot.pause()
        return screen_text(app)


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        (["enter"], [BOX, FRESH]),
        (["space", "enter"], [FRESH]),
        (["n", "n", "space", "enter"], [BOX, FRESH, GONE]),
        (["end", "space", "enter"], [BOX, FRESH]),
        (["tab", "n", "space", "enter"], [BOX]),
        (["n", "space", "escape"], None),
    ],
)
async def test_keys_choose_and_write(keys: list[str], chosen: list[FileProposal] | None) -> None:
    writer = Writer()
    async with open_diff(writer=writer) as (pilot, app):
        await pilot.press(*keys)
        await wait_until(pilot, lambda: bool(app.results))
    assert app.results == [chosen]
    assert writer.applied == ([chosen] if chosen else [])


async def test_long_lines_scroll_to_the_right() -> None:
    long = [change("a.txt", None, ("start" + "." * 200 + "end\n").encode())]
    assert "end" not in await screen_after(proposals=long, size=(60, 20))
    moved = await screen_after(*["right"] * 25, proposals=long, size=(60, 20))
    assert "end" in moved
    assert "1 + " in moved  # the sign stays
    assert clean_line("x" * (MAX_LINE_CHARS + 900)) == "x" * MAX_LINE_CHARS + " … 900 more characters"
    assert clean_line("x" * MAX_LINE_CHARS) == "x" * MAX_LINE_CHARS


@pytest.mark.parametrize(
    ("proposal", "message"), [(GONE, "Nothing is chosen."), (BAD, "None of the changes can be applied.")]
)
async def test_enter_without_chosen_files_is_explained(proposal: FileProposal, message: str) -> None:
    writer = Writer()
    async with open_diff([proposal], writer) as (pilot, app):
        await pilot.press("enter")
        await pilot.pause()
        assert message in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
    assert (app.results, writer.applied) == ([None], [])


@pytest.mark.parametrize("again", [True, False])
async def test_failed_write_is_reported_and_can_be_repeated(again: bool) -> None:
    writer = Writer(ApplyResult((BOX,), "src/new.py cannot be written: No space left on device"), ApplyResult((FRESH,)))
    async with open_diff(writer=writer, size=(120, 24)) as (pilot, app):
        await pilot.press("enter")
        await wait_until(pilot, lambda: "No space left on device. 1 of 2 files were written." in screen_text(app))
        assert "● src/box.py  written" in screen_text(app)
        await pilot.press(*(("home", "space", "enter") if again else ("escape",)))
        await wait_until(pilot, lambda: bool(app.results))
    assert app.results == ([[BOX, FRESH]] if again else [[BOX]])
    assert writer.applied == ([[BOX, FRESH], [FRESH]] if again else [[BOX, FRESH]])


async def test_file_and_path_are_sanitised() -> None:
    odd = "[red]a[/x]\x1b]0;t\x07\u202e\u200b.py"
    proposals = [
        change(odd, None, f"{odd}\n\x9b31m\r|\tend".encode()),
        FileProposal(odd, None, None, problem=f"has no line {odd}"),
    ]
    for keys in ((), ("n",)):
        screen = await screen_after(*keys, proposals=proposals, size=(160, 20))
        assert "[red]a[/x]␛]0;t␇⟦U+202E⟧⟦U+200B⟧.py" in screen
        assert not set("\x1b\x07\x9b\u202e\u200b\r") & set(screen)
        assert keys or "⟦U+009B⟧31m␍|" in screen
