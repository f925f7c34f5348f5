"""Dialog of the models: keys, downloads and typed names."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localdflash.base.errors import LocaldflashError
from localdflash.chat.model_list import ModelRow, PullProgress
from localdflash.tui.screens import models_screen
from localdflash.tui.screens.dialog import ChoiceList, Field
from localdflash.tui.screens.models_screen import DownloadProgress, ModelPicker
from tests.tui.stage import Stage, dialog, result_of, screen_text, wait_until

ROWS = [
    ModelRow("embedded", "Small Python code model", "1 GB", is_downloaded=True, recommended="about 90 tok/s"),
    ModelRow("qwen3-4b", "Qwen3 4B, dense", "6 GB", is_downloaded=False, download="2.50 GB"),
    ModelRow("qwen3-8b", "Qwen3 8B, dense", "10 GB", is_downloaded=True),
    ModelRow("gpt-oss-20b", "gpt-oss 20B", "", is_downloaded=False, why_not="needs 16 GB, this machine has 8 GB"),
]
FITS = {"embedded": ["Fits on llama.cpp"], "qwen3-4b": ["Does not fit", "take a smaller one"], "qwen3-8b": ["Fits"]}
NAME = "hf:a/b/c.gguf"


class FakeModels:
    """Fake list of models. `pulls` are the steps of a download: progress, an error, or None to wait for ever."""

    def __init__(self, rows: Sequence[ModelRow] = ROWS, *pulls: PullProgress | LocaldflashError | None) -> None:
        self.all_rows, self.pulls = rows, pulls
        self.asked: list[str] = []
        self.described: list[str] = []
        self.pulled: list[str] = []
        self.stopped = 0

    async def rows(self) -> Sequence[ModelRow]:
        return self.all_rows

    async def fit(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        return FITS.get(name, ["Fits somewhere"])

    async def describe(self, name: str) -> ModelRow:
        self.described.append(name)
        is_downloaded = not name.startswith("hf:")
        return ModelRow(name, "271.06 MB, 8192 tokens of context, llama Q8_0", "", is_downloaded)

    async def pull(self, name: str, show: Callable[[PullProgress], None]) -> str:
        self.pulled.append(name)
        try:
            for one in self.pulls:
                if isinstance(one, Exception):
                    raise one
                if one is None:
                    await asyncio.Event().wait()
                else:
                    show(one)
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        return name


@pytest.fixture(autouse=True)
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_screen, "FIT_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(models_screen, "LOOKUP_DELAY_SECONDS", 0.0)


def picker(source: FakeModels, current: str = "") -> Callable[[], ModelPicker]:
    return lambda: ModelPicker(source.rows, source.fit, source.describe, source.pull, current)


def open_picker(
    source: FakeModels | None = None, current: str = ""
) -> AbstractAsyncContextManager[tuple[Pilot[Any], Stage]]:
    return dialog(picker(source or FakeModels(), current))


@pytest.mark.parametrize(
    ("keys", "result"),
    [
        (["down", "down", "enter"], ["qwen3-8b"]),
        (["pagedown", "enter"], []),
        ([*"zzz", "enter"], []),
        ([*"~nobody-has-this-name/", "enter"], []),
        ([*NAME, "enter"], [NAME]),
    ],
)
async def test_model_picker_keys(keys: list[str], result: list[str | None]) -> None:
    assert await result_of(picker(FakeModels(), "embedded"), *keys) == result


async def test_the_recommended_model_says_so() -> None:
    async with open_picker() as (pilot, app):
        await wait_until(pilot, lambda: "recommended here, about 90 tok/s · on this machine" in screen_text(app))
        assert screen_text(app).count("recommended") == 1


HALF = PullProgress("downloading", "o/t/big.gguf", 1_250_000_000, 2_500_000_000)


async def test_download_shows_progress_and_esc_stops_only_it() -> None:
    source = FakeModels(ROWS, HALF, None)
    async with open_picker(source) as (pilot, app):
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: "Downloading big.gguf" in screen_text(app))
        assert "50 % · 1.25 GB of 2.50 GB" in screen_text(app)
        assert "Esc stops; the next download resumes from there" in screen_text(app)
        await pilot.press("down", "x", "enter")
        await pilot.click(ChoiceList, offset=(3, 0))
        await pilot.pause()
        assert "Downloading big.gguf" in screen_text(app)
        await pilot.press("escape")
        await wait_until(pilot, lambda: "Stopped: Enter resumes the download" in screen_text(app))
        assert "Esc closes" in screen_text(app)
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(source.pulled) == 2)
        await pilot.press("escape")
        await wait_until(pilot, lambda: source.stopped == 2)
        await pilot.press("up", "enter")
        await pilot.pause()
    assert app.results == ["embedded"]
    assert source.pulled == ["qwen3-4b"] * 2


def test_download_rate_and_time_left() -> None:
    lines_shown: list[tuple[str, ...]] = []
    now = 0.0
    progress = DownloadProgress(lambda *lines: lines_shown.append(lines), lambda: now)
    progress.move(PullProgress("downloading", "o/t/big.gguf", 600_000_000, 1_000_000_000))
    now = 10.0
    progress.move(PullProgress("downloading", "o/t/big.gguf", 700_000_000, 1_000_000_000))
    progress.move(PullProgress("checking", "o/t/big.gguf", 0, 1_000_000_000))
    assert [lines[0] for lines in lines_shown] == ["Downloading big.gguf", "Downloading big.gguf", "Checking big.gguf"]
    assert lines_shown[0][1].endswith("60 % · 600.0 MB of 1.00 GB")
    assert lines_shown[1][1].endswith("70 % · 700.0 MB of 1.00 GB · 10.0 MB/s · 30 s left")
    assert lines_shown[2][1].endswith("0 % · 0.0 MB of 1.00 GB")


async def test_typed_path_is_described(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    source = FakeModels()
    async with open_picker(source) as (pilot, app):
        app.screen.query_one(Field).value = str(tmp_path / "m.gguf")
        await wait_until(pilot, lambda: "271.06 MB, 8192 tokens of context, llama Q8_0" in screen_text(app))
        await wait_until(pilot, lambda: "Fits somewhere" in screen_text(app))
        assert "Qwen3" not in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
    assert app.results == [str(tmp_path / "m.gguf")]
    assert source.described == [str(tmp_path / "m.gguf")]
