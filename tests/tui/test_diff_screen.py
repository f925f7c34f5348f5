"""The dialog of changes: what it shows, every key, and what it gives to be written."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.base.errors import LocaldflashError
from localdflash.chat.applying import Outcome
from localdflash.chat.file_text import hunks
from localdflash.chat.proposals import Proposal
from localdflash.tui.diff_view import LONGEST, DiffView
from localdflash.tui.diff_view import shown as shown_line
from localdflash.tui.screens.diff_screen import DiffScreen, FileList
from tests.tui.stage import Stage, shown, wait_until

OLD = "".join(f"line {number}\n" for number in range(1, 41)).encode()
NEW = OLD.replace(b"line 7\n", b"line seven\n\tand more\n").replace(b"line 30\n", b"")


def change(path: str, before: bytes | None, after: bytes | None) -> Proposal:
    kind = "new" if before is None else "delete" if after is None else "change"
    return Proposal(path, before, after, kind, hunks(before, after))  # type: ignore[arg-type]


BOX = change("src/box.py", OLD, NEW)
FRESH = change("src/new.py", None, b"x = 1\n")
GONE = change("gone.py", b"x\n", None)
BAD = Proposal("bad.py", None, None, problem="hunk 1 of 1 fits nowhere: the file has no line 'abc'")
ALL = [BOX, FRESH, GONE, BAD]


class Desk:
    """Writes nothing; remembers what it was given."""

    def __init__(self, outcome: Callable[[Sequence[Proposal]], Outcome] | None = None) -> None:
        self.given: list[list[Proposal]] = []
        self._outcome = outcome or (lambda chosen: Outcome(tuple(chosen)))

    def apply(self, chosen: Sequence[Proposal]) -> Outcome:
        self.given.append(list(chosen))
        return self._outcome(chosen)


Script = Callable[[Pilot[None], Stage], Awaitable[None]]


def _play(
    script: Script, proposals: Sequence[Proposal] = ALL, desk: Desk | None = None, size: tuple[int, int] = (80, 24)
) -> list[Any]:
    async def run() -> list[Any]:
        app = Stage(screen=lambda: DiffScreen(proposals, (desk or Desk()).apply))
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(pilot, app)
        return app.results

    return asyncio.run(run())


def _press(*keys: str) -> Script:
    async def script(pilot: Pilot[None], app: Stage) -> None:
        await pilot.press(*keys)
        if {"enter", "a", "escape"} & set(keys):
            await wait_until(pilot, lambda: bool(app.results))

    return script


def _screen_after(*keys: str, **given: Any) -> str:
    seen = []

    async def script(pilot: Pilot[None], app: Stage) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        seen.append(shown(app))

    _play(script, **given)
    return seen[0]


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        (["enter"], [BOX, FRESH]),
        (["a"], [BOX, FRESH]),
        (["space", "enter"], [FRESH]),
        (["space", "space", "enter"], [BOX, FRESH]),
        (["down", "space", "enter"], [BOX]),
        (["n", "space", "enter"], [BOX]),
        (["down", "up", "space", "a"], [FRESH]),
        (["n", "n", "space", "enter"], [BOX, FRESH, GONE]),  # deleting has to be chosen
        (["n", "p", "space", "enter"], [FRESH]),
        (["end", "space", "enter"], [BOX, FRESH]),  # what cannot be applied cannot be chosen
        (["end", "home", "space", "enter"], [FRESH]),
        (["pagedown", "pageup", "space", "enter"], [FRESH]),
        (["tab", "n", "space", "enter"], [BOX]),  # the same keys while the diff has the focus
    ],
)
def test_keys_choose_and_write(keys: list[str], chosen: list[Proposal]) -> None:
    desk = Desk()
    assert _play(_press(*keys), desk=desk) == [chosen]
    assert desk.given == [chosen]


def test_esc_changes_nothing() -> None:
    desk = Desk()
    assert _play(_press("n", "space", "escape"), desk=desk) == [None]
    assert desk.given == []


def test_what_is_shown() -> None:
    screen = _screen_after()
    for text in (
        "✓ src/box.py  +2 -2",
        "✓ src/new.py  new, +1 -0",
        "○ gone.py  deleted, +0 -1",
        "✗ bad.py  hunk 1 of 1 fits nowhere",
        "@@ -4,7 +4,8 @@",
        " 4  4   line 4",
        " 7    - line 7",
        "    7 + line seven",
        "    8 +     and more",
        " 8  9   line 8",
        "@@ -27,7 +28,6 @@",
        "Changes to 4 files",
        "Enter writes",
    ):
        assert text in screen
    assert "✗ src" not in _screen_after("space")
    assert "○ src/box.py" in _screen_after("space")


def test_each_file_has_its_diff() -> None:
    assert "1 + x = 1" in _screen_after("n")
    gone = _screen_after("n", "n")
    assert "1   - x" in gone
    assert "not chosen: Space chooses it" in gone
    assert "not chosen" not in _screen_after("n", "n", "space")
    bad = _screen_after("n", "n", "n", "n", size=(120, 24))
    assert "bad.py hunk 1 of 1 fits nowhere: the file has no line 'abc'. It is not changed." in bad
    assert "@@" not in bad


def test_scrolling_the_diff() -> None:
    assert "line 33" not in _screen_after()
    assert "line 33" in _screen_after("tab", "end")
    assert "line 33" in _screen_after("tab", *["down"] * 12)
    assert "line 33" in _screen_after("tab", "pagedown")
    assert "@@ -4,7" in _screen_after("tab", "end", "home")
    assert "line 33" in _screen_after("end", proposals=[BOX])  # one file: the diff has the focus


def test_long_lines_go_on_to_the_right() -> None:
    long = change("a.txt", None, ("start" + "." * 200 + "end\n").encode())
    assert "end" not in _screen_after(proposals=[long], size=(60, 20))
    moved = _screen_after(*["right"] * 25, proposals=[long], size=(60, 20))
    assert "end" in moved
    assert "1 + " in moved  # the sign stays
    assert _screen_after(*["right"] * 25, *["left"] * 25, proposals=[long], size=(60, 20)).count("start") == 1


def test_a_line_beyond_all_use_is_cut_and_told() -> None:
    assert shown_line("x" * (LONGEST + 900)) == "x" * LONGEST + " … 900 more characters"
    assert shown_line("x" * LONGEST) == "x" * LONGEST


def test_nothing_chosen_is_told() -> None:
    seen = []

    async def script(pilot: Pilot[None], app: Stage) -> None:
        await pilot.press("enter")
        await pilot.pause()
        seen.append(shown(app))
        await pilot.press("escape")
        await pilot.pause()

    desk = Desk()
    assert _play(script, [GONE], desk) == [None]
    assert _play(script, [BAD], desk) == [None]
    assert desk.given == []
    assert "Nothing is chosen." in seen[0]
    assert "Nothing of it can be applied." in seen[1]


def test_a_failure_in_the_middle_is_told_and_the_rest_can_be_tried_again() -> None:
    results: list[Outcome] = [
        Outcome((BOX,), "src/new.py cannot be written: No space left on device"),
        Outcome((FRESH,)),
    ]
    desk = Desk(lambda _: results.pop(0))
    seen = []

    async def script(pilot: Pilot[None], app: Stage) -> None:
        await pilot.press("enter")
        await wait_until(pilot, lambda: "No space left" in shown(app))
        seen.append(shown(app))
        await pilot.press("home", "space", "enter")
        await wait_until(pilot, lambda: bool(app.results))

    assert _play(script, desk=desk, size=(120, 24)) == [[BOX, FRESH]]
    assert desk.given == [[BOX, FRESH], [FRESH]]
    assert "No space left on device. 1 of 2 files were written." in seen[0]
    assert "● src/box.py  written" in seen[0]


def test_esc_after_a_failure_gives_what_was_written() -> None:
    desk = Desk(lambda _: Outcome((BOX,), "src/new.py is read-only"))

    async def script(pilot: Pilot[None], app: Stage) -> None:
        await pilot.press("enter")
        await wait_until(pilot, lambda: "is read-only" in shown(app))
        await pilot.press("escape")
        await pilot.pause()

    assert _play(script, desk=desk) == [[BOX]]


def test_an_error_of_ours_is_a_line() -> None:
    def fail(_: Sequence[Proposal]) -> Outcome:
        raise LocaldflashError("no folder for the journal: set LOCALDFLASH_HOME")

    async def script(pilot: Pilot[None], app: Stage) -> None:
        await pilot.press("enter")
        await wait_until(pilot, lambda: "no folder for the journal" in shown(app))
        await pilot.press("escape")
        await pilot.pause()

    assert _play(script, desk=Desk(fail)) == [None]


def test_clicks_on_a_mark_choose_and_elsewhere_only_show() -> None:
    async def script(pilot: Pilot[None], app: Stage) -> None:
        files = app.screen.query_one(FileList)
        await pilot.click(files, offset=(6, 1))
        await pilot.pause()
        assert "1 + x = 1" in shown(app)
        assert "✓ src/new.py" in shown(app)
        await pilot.click(files, offset=(0, 1))
        await pilot.pause()
        assert "○ src/new.py" in shown(app)

    assert _play(script) == []


def test_nothing_of_a_file_or_a_path_is_obeyed() -> None:
    odd = "[red]a[/x]\x1b]0;t\x07\u202e\u200b.py"
    proposals = [
        change(odd, None, f"{odd}\n\x9b31m\r|\tend".encode()),
        Proposal(odd, None, None, problem=f"has no line {odd}"),
    ]
    for keys in ((), ("n",)):
        screen = _screen_after(*keys, proposals=proposals, size=(160, 20))
        assert "[red]a[/x]␛]0;t␇⟦U+202E⟧⟦U+200B⟧.py" in screen
        assert not set("\x1b\x07\x9b\u202e\u200b\r") & set(screen)
    assert "⟦U+009B⟧31m␍|" in _screen_after(proposals=proposals, size=(160, 20))


def test_ten_thousand_lines_open_fast() -> None:
    text = "".join(f"x = {number} é\n" for number in range(10_000)).encode()
    large = change("a.py", None, text)
    took = []

    async def script(pilot: Pilot[None], app: Stage) -> None:
        view = app.screen.query_one(DiffView)
        start = time.perf_counter()
        view.show(large.hunks)
        took.append(time.perf_counter() - start)
        await pilot.press("end")
        await pilot.pause()
        assert "x = 9999" in shown(app)

    _play(script, [large])
    assert took[0] < 3


SIZES = [(20, 5), (60, 18), (120, 36)]
THEMES = [
    "localdflash-dark",
    *(pytest.param(theme, marks=pytest.mark.slow) for theme in ("localdflash-light", "ansi-dark")),
]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_how_it_looks(snap_compare: Any, theme: str, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        await pilot.pause()

    assert snap_compare(Stage(screen=lambda: DiffScreen(ALL, Desk().apply)), terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES)
def test_how_a_problem_looks(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(Stage(screen=lambda: DiffScreen(ALL, Desk().apply)), terminal_size=size, press=["end"])
