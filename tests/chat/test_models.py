"""Models listed, explained and downloaded by the real command line, or by a replacement of it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.chat import model_list
from localdflash.models.registry.pair_entry import models_folder
from localdflash.models.registry.registry import load_registry
from localdflash.server import spawn
from tests.support.fake_hub import FakeHub, File, environment
from tests.support.registry_entries import WAITING, register

PLAN = {
    "backend": "cuda",
    "total": 24_000_000_000,
    "free": 8_000_000_000,
    "what": "GPU memory",
    "fits": False,
    "verdict": "take a smaller pair",
    "context": 4096,
    "trained": 40960,
    "speed": {"plain": 31.7, "drafted": 98.2},
}


def replace_program(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", program)


@pytest.mark.system
def test_model_list_has_every_registered_pair(home: Path) -> None:
    register(home, WAITING)
    rows = {row.id: row for row in asyncio.run(model_list.list_models())}
    assert rows.keys() == load_registry().pairs.keys()
    best, *others = rows.values()
    assert [bool(row.recommended) for row in (best, *others)] == [True, *([False] * len(others))]
    assert best.recommended.startswith("about ")
    assert replace(rows["embedded"], recommended="") == model_list.ModelRow(
        "embedded", "Small Python code model that ships with the package", "1 GB", is_downloaded=True
    )
    assert not rows["qwen3-4b"].is_downloaded
    assert rows["smollm2-135m"].download == "92.9 MB"
    assert rows["waiting"].why_not == "no backend runs it yet"
    reasons = [bool(row.why_not) for row in rows.values()]
    assert reasons == sorted(reasons), "pairs that cannot run come last"


# Downloads

NAME = "hf:o/t/target.gguf"


@pytest.fixture
def hub(tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with FakeHub() as running:
        for name, value in environment(running, tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        running.files["o/t/target.gguf"] = File((tiny_pair / "target.gguf").read_bytes())
        yield running


@pytest.mark.system
def test_pull_reports_progress(hub: FakeHub) -> None:
    progress: list[model_list.PullProgress] = []
    size = len(hub.files["o/t/target.gguf"].data)
    assert asyncio.run(model_list.pull_model(NAME, progress.append)) == NAME
    assert (models_folder() / "o/t/target.gguf").stat().st_size == size
    assert {(one.doing, one.name, one.total) for one in progress} >= {("downloading", "o/t/target.gguf", size)}
    assert [one.done for one in progress if one.doing == "downloading"][-1] == size
    hub.requests.clear()
    assert asyncio.run(model_list.pull_model(NAME, progress.append)) == NAME
    assert hub.requests == [], "it is downloaded"


@pytest.mark.system
def test_cancelled_pull_can_be_resumed(hub: FakeHub) -> None:
    sent, resume = threading.Event(), threading.Event()

    def hold(count: int) -> None:
        if count and None in hub.downloads("o/t/target.gguf"):  # the whole file, not its header
            sent.set()
            resume.wait(20)

    hub.sent = hold

    async def leave() -> None:
        pulling = asyncio.create_task(model_list.pull_model(NAME, lambda _: None))
        await asyncio.to_thread(sent.wait, 20)
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)

    try:
        asyncio.run(leave())
    finally:
        resume.set()
    assert not (models_folder() / "o/t/target.gguf").exists()
    pulls = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    assert pulls == []
    hub.sent = lambda _: None
    assert asyncio.run(model_list.pull_model(NAME, lambda _: None)) == NAME


def test_explain_fit_of_a_pair_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, f"import sys; print({json.dumps(PLAN)!r}); sys.exit(4)")
    assert asyncio.run(model_list.explain_fit("big")) == [
        "Does not fit on cuda: 24.00 GB with a margin, 8.00 GB of GPU memory are free",
        "take a smaller pair",
        "Context: 4096 of 40960 tokens",
        "At most 32 tokens a second without drafts, 98 with drafts (estimated)",
    ]
    unknown = PLAN | {"speed": {"plain": None, "drafted": None}}
    replace_program(monkeypatch, f"print({json.dumps(unknown)!r})")
    assert not any("tokens a second" in line for line in asyncio.run(model_list.explain_fit("big")))


@pytest.mark.system
def test_model_name_is_never_parsed_as_an_option() -> None:
    with pytest.raises(ModelError, match="no pair '--help'"):
        asyncio.run(model_list.explain_fit("--help"))


def test_malformed_command_output_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, "print('not json')")
    with pytest.raises(ModelError, match="printed nothing"):
        asyncio.run(model_list.list_models())
    with pytest.raises(LocaldflashError, match="malformed"):
        asyncio.run(model_list.pull_model(NAME, lambda _: None))


@pytest.mark.parametrize(
    "program", ["import time; time.sleep(60)", "import sys, time; 'list' in sys.argv or time.sleep(60)"]
)
def test_no_command_outlives_an_error(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list takes too long, or prints nothing while the other command still runs."""
    replace_program(monkeypatch, program)
    monkeypatch.setattr(model_list, "LIST_SECONDS", 1.0)
    with pytest.raises(
        LocaldflashError, match=r"`localdflash models list --json` (took longer than 1 s|printed nothing)"
    ):
        asyncio.run(model_list.list_models())
    assert not psutil.Process().children()
