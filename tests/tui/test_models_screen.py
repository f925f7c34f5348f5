import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.chat.models import ModelRow
from localdflash.errors import LocaldflashError
from localdflash.tui.screens import models
from localdflash.tui.screens.dialog import Choices
from localdflash.tui.screens.models import ModelPicker
from tests.tui.stage import Script, Stage, play, shown, wait_until

ROWS = [
    ModelRow("embedded", "Small Python code model", "1 GB", here=True, runs=True),
    ModelRow("qwen3-4b", "Qwen3 4B, dense", "6 GB", here=False, runs=True),
    ModelRow("qwen3-8b", "Qwen3 8B, dense", "10 GB", here=True, runs=True),
    ModelRow("gpt-oss-20b", "gpt-oss 20B", "", here=False, runs=False),
]
FITS = {"embedded": ["Fits on llama.cpp"], "qwen3-4b": ["Does not fit", "take a smaller one"], "qwen3-8b": ["Fits"]}


class Source:
    def __init__(self, rows: Sequence[ModelRow] = ROWS) -> None:
        self.given = rows
        self.asked: list[str] = []

    async def rows(self) -> Sequence[ModelRow]:
        return self.given

    async def fit(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        return FITS[name]


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "REST", 0.0)


def picking(
    script: Script, source: Source | None = None, current: str = "", size: tuple[int, int] = (100, 30)
) -> list[Any]:
    source = source or Source()
    app = Stage(screen=lambda: ModelPicker(source.rows, source.fit, current))
    asyncio.run(play(app, script, size))
    return app.results


def pressing(*keys: str) -> Script:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press(*keys)
        await pilot.pause()

    return script


def test_every_row_says_whether_it_is_here_and_what_it_needs() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        text = shown(pilot.app)
        for said in (
            "on this machine · about 1 GB · Small Python code model",
            "not downloaded · about 6 GB",
            "loaded now · about 10 GB",
            "no backend runs it yet · gpt-oss 20B",
        ):
            assert said in text

    picking(script, current="qwen3-8b")


@pytest.mark.parametrize(
    ("keys", "result"),
    [
        (["enter"], ["embedded"]),
        (["down", "down", "enter"], ["qwen3-8b"]),
        ([*"8B", "enter"], ["qwen3-8b"]),
        (["down", "enter"], []),
        (["pagedown", "enter"], []),
        ([*"zzz", "enter"], []),
        (["escape"], [None]),
        ([*"hf:a/b/c.gguf", "enter"], ["hf:a/b/c.gguf"]),
    ],
)
def test_keys(keys: list[str], result: list[str | None]) -> None:
    assert picking(pressing(*keys)) == result


def test_the_model_that_runs_is_highlighted_first() -> None:
    assert picking(pressing("enter"), current="qwen3-8b") == ["qwen3-8b"]


def test_a_click_chooses() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.click(Choices, offset=(3, 4))
        await pilot.pause()

    assert picking(script) == ["qwen3-8b"]


def test_the_fit_of_a_row_is_shown_and_asked_for_once() -> None:
    source = Source()

    async def script(pilot: Pilot[Any]) -> None:
        app = pilot.app
        await wait_until(pilot, lambda: "Fits on llama.cpp" in shown(app))
        await pilot.press("down")
        await wait_until(pilot, lambda: "take a smaller one" in shown(app))
        assert "localdflash models pull qwen3-4b" in shown(app)
        assert "Fits on llama.cpp" not in shown(app)
        await pilot.press("up")
        await wait_until(pilot, lambda: "Fits on llama.cpp" in shown(app))

    picking(script, source)
    assert source.asked == ["embedded", "qwen3-4b"]


def test_rows_that_are_passed_by_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "REST", 0.6)
    source = Source()

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("down", "down")
        await wait_until(pilot, lambda: bool(source.asked), 2000)

    picking(script, source)
    assert source.asked == ["qwen3-8b"]


def test_one_that_is_not_here_says_how_to_get_it() -> None:
    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: "Run this in another terminal" in shown(pilot.app))
        assert "localdflash models pull qwen3-4b" in shown(pilot.app)

    assert picking(script) == []


def test_one_that_nothing_runs_is_not_asked_about() -> None:
    source = Source(ROWS[3:])

    async def script(pilot: Pilot[Any]) -> None:
        await wait_until(pilot, lambda: "No backend of localdflash runs gpt-oss-20b yet" in shown(pilot.app))

    picking(script, source)
    assert not source.asked


def test_a_file_is_taken_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").touch()

    async def script(pilot: Pilot[Any]) -> None:
        await pilot.press(*"x.gguf", "enter")
        await pilot.pause()
        assert "There is no file at" in shown(pilot.app)
        await pilot.press(*["backspace"] * 6, *"m.gguf", "enter")
        await pilot.pause()

    assert picking(script) == [str(tmp_path / "m.gguf")]


def test_what_fails_is_one_line() -> None:
    class Broken(Source):
        async def fit(self, name: str) -> Sequence[str]:
            raise LocaldflashError("[b]cannot\x1b[31m tell\nwhy")

    async def script(pilot: Pilot[Any]) -> None:
        await wait_until(pilot, lambda: "[b]cannot" in shown(pilot.app))
        assert "tell why" in shown(pilot.app)
        assert "\x1b" not in shown(pilot.app)

    picking(script, Broken())


def test_no_list_is_one_line_too() -> None:
    class Broken(Source):
        async def rows(self) -> Sequence[ModelRow]:
            raise LocaldflashError("models.toml: line 3: expected a table")

    async def script(pilot: Pilot[Any]) -> None:
        assert "line 3: expected a table" in shown(pilot.app)
        await pilot.press("enter", "down", "x", "escape")
        await pilot.pause()

    assert picking(script, Broken()) == [None]


@pytest.mark.parametrize("size", [(20, 5), (40, 12)])
def test_a_tiny_terminal(size: tuple[int, int]) -> None:
    async def script(pilot: Pilot[Any]) -> None:
        assert "embedded" in shown(pilot.app)
        await pilot.press("down", "down", "enter")
        await pilot.pause()

    assert picking(script, size=size) == ["qwen3-8b"]
