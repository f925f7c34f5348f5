import asyncio
from typing import Any

from textual.pilot import Pilot

from localdflash.tui.welcome import Welcome, tries
from tests.tui.stage import Stage, play, shown


def text_of(welcome: Welcome, size: tuple[int, int] = (80, 20)) -> list[str]:
    rows: list[str] = []

    async def read(pilot: Pilot[Any]) -> None:
        assert pilot.app.query_one("#welcome") is welcome
        await pilot.pause()
        rows.extend(row.strip() for row in shown(pilot.app).split("\n") if row.strip())

    asyncio.run(play(Stage(welcome), read, size))
    return rows


def test_the_first_run_is_explained_and_has_three_things_to_try() -> None:
    rows = text_of(Welcome(first_run=True), (120, 24))
    assert rows[0] == "localdflash, a coding assistant"
    assert [row.removeprefix("Try").strip() for row in rows[2:5]] == list(tries())
    assert len(rows) == 10
    text = " ".join(rows)
    for said in (
        "runs on this machine",
        "nothing you type leaves it",
        "often wrong",
        "localdflash models list",
        "/model",
    ):
        assert said in text
    for said in ("F1", "Ctrl+D", "--no-log", "drafter"):
        assert said in text


def test_later_runs_say_less() -> None:
    rows = text_of(Welcome(first_run=False), (120, 24))
    assert len(rows) == 7
    assert "F1" in rows[-2]
    assert "Ctrl+O" in rows[-1]


def test_a_file_of_the_folder_is_something_to_try() -> None:
    assert tries("@a.py")[1] == "Explain @a.py"
    assert "@" not in "".join(tries())


def test_with_a_server_nothing_is_called_local() -> None:
    text = " ".join(text_of(Welcome(first_run=True, model="gpt", server="https://api.example.com/v1")))
    assert "what you send goes there" in text
    assert "localdflash models list" not in text  # names models of this machine
    assert "https://api.example.com/v1" in text
    assert "nothing you type leaves" not in text


def test_another_model_is_named_and_not_called_small() -> None:
    text = " ".join(text_of(Welcome(first_run=True, model="/m/[b]q\x1bwen.gguf")))
    assert "[b]q" in text
    assert "\x1b" not in text
    assert "A small model" not in text


def test_it_wraps_on_a_narrow_terminal_and_survives_a_tiny_one() -> None:
    assert "Leaving" in " ".join(text_of(Welcome(first_run=True), (40, 30)))
    assert text_of(Welcome(first_run=True), (20, 5))
