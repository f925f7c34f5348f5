"""The command line is run for real; what it could also print is put in its place."""

import asyncio
import json
import threading
from collections.abc import Iterator
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


def instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", program)


@pytest.mark.system
def test_every_pair_of_the_registry_is_a_row(home: Path) -> None:
    register(home, WAITING)
    rows = {row.id: row for row in asyncio.run(model_list.list_models())}
    assert rows.keys() == load_registry().pairs.keys()
    assert rows["embedded"] == model_list.ModelRow(
        "embedded", "Small Python code model that ships with the package", "1 GB", here=True
    )
    assert not rows["qwen3-4b"].here
    assert rows["smollm2-135m"].download == "92.9 MB"
    assert rows["waiting"].why_not == "no backend runs it yet"
    reasons = [bool(row.why_not) for row in rows.values()]
    assert reasons == sorted(reasons), "what cannot run here comes last"


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
def test_a_name_on_the_hub_is_downloaded_and_told_of(hub: FakeHub) -> None:
    told: list[model_list.PullProgress] = []
    size = len(hub.files["o/t/target.gguf"].data)
    assert asyncio.run(model_list.pull_model(NAME, told.append)) == NAME
    assert (models_folder() / "o/t/target.gguf").stat().st_size == size
    assert {(one.doing, one.name, one.total) for one in told} >= {("downloading", "o/t/target.gguf", size)}
    assert [one.done for one in told if one.doing == "downloading"][-1] == size
    hub.requests.clear()
    assert asyncio.run(model_list.pull_model(NAME, told.append)) == NAME
    assert hub.requests == [], "it is here"


@pytest.mark.system
def test_who_cancels_a_download_leaves_what_came(hub: FakeHub) -> None:
    sent, going_on = threading.Event(), threading.Event()

    def hold(count: int) -> None:
        if count and None in hub.downloads("o/t/target.gguf"):  # of all of it, not of its head
            sent.set()
            going_on.wait(20)

    hub.sent = hold

    async def leave() -> None:
        pulling = asyncio.create_task(model_list.pull_model(NAME, lambda _: None))
        await asyncio.to_thread(sent.wait, 20)
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)

    try:
        asyncio.run(leave())
    finally:
        going_on.set()
    assert not (models_folder() / "o/t/target.gguf").exists()
    pulls = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    assert pulls == []
    hub.sent = lambda _: None
    assert asyncio.run(model_list.pull_model(NAME, lambda _: None)) == NAME


def test_a_pair_that_does_not_fit_says_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, f"import sys; print({json.dumps(PLAN)!r}); sys.exit(4)")
    assert asyncio.run(model_list.explain_fit("big")) == [
        "Does not fit on cuda: 24.00 GB with a margin, 8.00 GB of GPU memory are free",
        "take a smaller pair",
        "Context: 4096 of 40960 tokens",
        "At most 32 tokens a second without drafts, 98 with drafts (estimated)",
    ]


@pytest.mark.system
def test_a_name_is_never_an_option() -> None:
    with pytest.raises(ModelError, match="no pair '--help'"):
        asyncio.run(model_list.explain_fit("--help"))


def test_what_makes_no_sense_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, "print('not json')")
    with pytest.raises(ModelError, match="printed nothing"):
        asyncio.run(model_list.list_models())
    with pytest.raises(LocaldflashError, match="malformed"):
        asyncio.run(model_list.pull_model(NAME, lambda _: None))


def test_what_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    instead(monkeypatch, f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    monkeypatch.setattr(model_list, "LIST_SECONDS", 1.0)
    with pytest.raises(LocaldflashError, match=r"`localdflash models list --json` took longer than 1 s"):
        asyncio.run(model_list.list_models())
    assert not psutil.pid_exists(int(pid.read_text()))
