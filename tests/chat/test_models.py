"""The command line is run for real; what it could also print is put in its place."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from localdflash.chat import models
from localdflash.errors import LocaldflashError, ModelError
from localdflash.pairs.registry import load_registry
from localdflash.server import spawn
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


def test_every_pair_of_the_registry_is_a_row(home: Path) -> None:
    register(home, WAITING)
    rows = {row.id: row for row in asyncio.run(models.rows())}
    assert rows.keys() == load_registry().pairs.keys()
    assert rows["embedded"] == models.ModelRow(
        "embedded", "Small Python code model that ships with the package", "1 GB", here=True, runs=True
    )
    assert not rows["qwen3-4b"].here
    assert not rows["waiting"].runs


def test_the_fit_of_a_pair_that_is_here() -> None:
    fits, context, speed = asyncio.run(models.fit("embedded"))
    assert fits.startswith(("Fits on cpu: ", "Fits on llama.cpp: "))
    assert context == "Context: 1024 of 1024 tokens"
    assert speed.startswith("At most ")


def test_a_pair_that_does_not_fit_says_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, f"import sys; print({json.dumps(PLAN)!r}); sys.exit(4)")
    assert asyncio.run(models.fit("big")) == [
        "Does not fit on cuda: 24.00 GB with a margin, 8.00 GB of GPU memory are free",
        "take a smaller pair",
        "Context: 4096 of 40960 tokens",
        "At most 32 tokens a second without drafts, 98 with drafts (estimated)",
    ]


def test_a_pair_that_does_not_exist_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"^no pair 'nope'; see `localdflash models list`$"):
        asyncio.run(models.fit("nope"))


def test_a_name_is_never_an_option() -> None:
    with pytest.raises(ModelError, match="no pair '--help'"):
        asyncio.run(models.fit("--help"))


@pytest.mark.parametrize("printed", ["", "print('not json')"])
def test_what_makes_no_sense_is_one_line(monkeypatch: pytest.MonkeyPatch, printed: str) -> None:
    instead(monkeypatch, printed)
    with pytest.raises(ModelError, match="printed nothing"):
        asyncio.run(models.rows())


def test_what_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    instead(monkeypatch, f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    monkeypatch.setattr(models, "LIST_SECONDS", 1.0)
    with pytest.raises(LocaldflashError, match=r"`localdflash models list --json` took longer than 1 s"):
        asyncio.run(models.rows())
    assert not psutil.pid_exists(int(pid.read_text()))


def test_who_no_longer_waits_leaves_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    instead(
        monkeypatch,
        f"import os, time; open({str(pid)!r} + '~', 'w').write(str(os.getpid()));"
        f" os.rename({str(pid)!r} + '~', {str(pid)!r}); time.sleep(60)",
    )

    async def leave() -> None:
        asking = asyncio.create_task(models.fit("embedded"))
        end = time.monotonic() + 20
        while not pid.exists() and time.monotonic() < end:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(leave())
    assert not psutil.pid_exists(int(pid.read_text()))


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = ["torch", "llama_cpp", "numpy", "httpx2"]
    program = f"import sys, localdflash.chat.models; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
