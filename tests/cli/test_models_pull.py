"""`models pull` and `models rm`, against a hub on loopback that serves the tiny pair."""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localdflash.models.registry.pair_entry import models_folder
from tests.cli.conftest import Done
from tests.support.fake_hub import FakeHub, File, hub_for_tests
from tests.support.registry_entries import WAITING, register

ENTRY = """\
schema = 1

[[pair]]
id = "mine"
description = "A pair of mine"
backends = ["llama.cpp"]

[pair.target]
repository = "o/t"
file = "target.gguf"

[pair.drafter]
kind = "dflash"
repository = "o/d"
file = "model.safetensors"
"""
SECOND = ENTRY.removeprefix("schema = 1\n").replace('"mine"', '"second"').replace("target.gguf", "second.gguf")
OTHER_TARGET = "hf:o/t/other.gguf"


@pytest.fixture
def hub(home: Path, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve the tiny pair under the names of the entry, with a second file of the target."""
    registry = home / "config" / "models.toml"
    registry.parent.mkdir(parents=True)
    registry.write_text(ENTRY)
    with hub_for_tests(tmp_path, monkeypatch) as running:
        target = (tiny_pair / "target.gguf").read_bytes()
        running.files |= {f"o/t/{name}.gguf": File(target) for name in ("target", "other", "second")}
        running.files["o/d/model.safetensors"] = File((tiny_pair / "drafter.safetensors").read_bytes())
        running.files["o/d/config.json"] = File((tiny_pair / "config.json").read_bytes(), large=False)
        running.files["o/d/drafter.gguf"] = File((tiny_pair / "drafter.gguf").read_bytes())
        yield running


def visible() -> list[str]:
    """Return the files of the models folder, without hidden records."""
    found = (path for path in models_folder().rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(str(path.relative_to(models_folder())) for path in found)


PULLED = ["o/d/config.json", "o/d/model.safetensors", "o/t/target.gguf"]


def test_a_pair_is_fetched_and_runs(hub: FakeHub, run: Callable[..., Done], tmp_path: Path) -> None:
    done = run("models", "pull", "mine")
    assert done.code == 0, done
    assert done.out.count("fetched and verified") == 3
    assert visible() == PULLED
    code = tmp_path / "app.py"
    code.write_text("def f():\n    ")
    answer = run("complete", f"{code}:2:5", "--pair", "mine", "--threads", "1", "--max-tokens", "4", "--no-daemon")
    assert answer.code == 0, answer


def test_progress_as_json_lines(hub: FakeHub, run: Callable[..., Done]) -> None:
    *steps, last = [json.loads(line) for line in run("models", "pull", "mine", "--jsonl").out.splitlines()]
    assert last["pair"] == "mine"
    assert len(last["files"]) == 3
    fetched = [step for step in steps if step.get("doing") == "downloading"]
    assert {step["name"] for step in fetched} == set(PULLED)
    assert all(0 <= step["done"] <= step["total"] for step in fetched)


def test_progress_as_a_bar(hub: FakeHub, run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.cli.pull.sys.stderr.isatty", lambda: True, raising=False)
    done = run("models", "pull", "mine")
    assert "downloading target.gguf" in done.err
    assert done.err.rstrip(" ").endswith("\r"), "the bar is removed"
    hub.files["o/t/other.gguf"].stop_after = 0
    last = run("models", "pull", OTHER_TARGET).err.rpartition("\r")[2]
    assert last.startswith("localdflash: o/t/other.gguf: "), "the error has its own line"


def test_what_cannot_be_pulled(hub: FakeHub, run: Callable[..., Done], fails: Callable[..., str], home: Path) -> None:
    hub.files["o/t/target.gguf"] = File(b"GGUF but not really" * 100)
    done = run("models", "pull", "mine")
    assert (done.code, done.out) == (3, "")
    assert f"{models_folder() / 'o/t/target.gguf'}: " in done.err.splitlines()[-1]
    shutil.rmtree(models_folder())
    hub.files["o/d/model.safetensors"].error = (403, "GatedRepo")
    assert "o/d" in fails(3, "models", "pull", "mine")
    assert "--revision: " in fails(2, "models", "pull", "mine", "--revision", "")
    assert "no revision" in fails(2, "models", "pull", "embedded", "--revision", "main")
    assert visible() == [], "all files are looked up before the first byte"
    register(home, WAITING)
    assert "no backend runs 'waiting'" in fails(3, "models", "pull", "waiting")


def test_rm_deletes_all_of_a_pair(hub: FakeHub, run: Callable[..., Done]) -> None:
    run("models", "pull", "mine")
    total = sum((models_folder() / name).stat().st_size for name in PULLED)
    dry = json.loads(run("models", "rm", "mine", "--dry-run", "--json").out)
    assert visible() == PULLED
    assert (dry["deleted"], dry["bytes"] >= total) == (False, True)
    done = run("models", "rm", "mine", "--yes")
    assert (done.code, str(dry["bytes"]) in done.out) == (0, True)
    assert list(models_folder().iterdir()) == []
    assert run("models", "rm", "mine", "--yes").out == "nothing is here\n"


def test_rm_keeps_files_that_another_pair_uses(hub: FakeHub, run: Callable[..., Done], home: Path) -> None:
    (home / "config" / "models.toml").write_text(ENTRY + SECOND)
    for spec in ("mine", "second", OTHER_TARGET):
        assert run("models", "pull", spec).code == 0
    done = run("models", "rm", "mine", "--yes")
    assert done.out.count("kept, ") == 2
    left = ["o/d/config.json", "o/d/model.safetensors", "o/t/other.gguf", "o/t/second.gguf"]
    assert visible() == left
    run("models", "rm", "second", "--yes")
    assert visible() == left[:-1]
    run("models", "rm", OTHER_TARGET, "--yes")
    assert visible() == []


@pytest.mark.parametrize(("answer", "left"), [("y\n", []), ("n\n", PULLED), ("", PULLED)])
def test_rm_asks(
    answer: str, left: list[str], hub: FakeHub, run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("models", "pull", "mine")
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: bool(answer))
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _prompt="": terminal.readline().rstrip("\n"))
    done = run("models", "rm", "mine")
    assert done.code == (0 if not left else 130 if answer else 2)
    assert bool(answer) or "--yes or --dry-run" in done.err
    assert visible() == left


def test_rm_refuses_files_that_were_not_downloaded(hub: FakeHub, fails: Callable[..., str], tiny_pair: Path) -> None:
    for spec in ("embedded", tiny_pair / "target.gguf"):
        assert "was not downloaded by localdflash" in fails(3, "models", "rm", spec, "--yes")
    assert (tiny_pair / "target.gguf").exists()
