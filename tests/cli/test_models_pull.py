"""`models pull` and `models rm`, against a hub on loopback that serves the tiny pair."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localdflash.models.registry import records
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
    """Serves the tiny pair under the names of the entry; a second file of the target beside it."""
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
    """All files of the models folder that are no notes of ours."""
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


def test_a_pull_that_a_program_follows(hub: FakeHub, run: Callable[..., Done]) -> None:
    lines = [json.loads(line) for line in run("models", "pull", "mine", "--jsonl").out.splitlines()]
    *steps, last = lines
    assert last["pair"] == "mine"
    assert len(last["files"]) == 3
    fetched = [step for step in steps if step.get("doing") == "downloading"]
    assert {step["name"] for step in fetched} == set(PULLED)
    assert all(0 <= step["done"] <= step["total"] for step in fetched)


def test_a_bar_for_who_watches(hub: FakeHub, run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.cli.pull.sys.stderr.isatty", lambda: True, raising=False)
    done = run("models", "pull", "mine")
    assert "downloading target.gguf" in done.err
    assert done.err.rstrip(" ").endswith("\r"), "the bar goes away"
    hub.files["o/t/other.gguf"].stop_after = 0
    last = run("models", "pull", OTHER_TARGET).err.rpartition("\r")[2]
    assert last.startswith("localdflash: o/t/other.gguf: "), "the error has a line of its own"


def test_another_quantization_takes_the_entry_s_drafter(hub: FakeHub, run: Callable[..., Done]) -> None:
    assert run("models", "pull", OTHER_TARGET).code == 0
    assert visible() == ["o/d/config.json", "o/d/model.safetensors", "o/t/other.gguf"]
    assert OTHER_TARGET in run("models", "list").out


def test_a_drafter_of_one_s_own_is_remembered(hub: FakeHub, run: Callable[..., Done], home: Path) -> None:
    (home / "config" / "models.toml").unlink()
    assert run("models", "pull", OTHER_TARGET, "--drafter", "hf:o/d/drafter.gguf").code == 0
    assert visible() == ["o/d/drafter.gguf", "o/t/other.gguf"]
    shown = json.loads(run("models", "show", OTHER_TARGET, "--json").out)
    assert shown["drafter"]["file"] == "drafter.gguf"
    assert run("models", "list").out.count("hf:o/") == 1
    run("models", "rm", OTHER_TARGET, "--yes")
    assert visible() == []


def last_line(run: Callable[..., Done], *arguments: str, code: int = 3) -> str:
    """The error of a command that also told how it went."""
    done = run(*arguments)
    assert (done.code, done.out) == (code, ""), done
    line = done.err.splitlines()[-1]
    assert line.startswith("localdflash: ")
    return line.removeprefix("localdflash: ")


@pytest.mark.parametrize("name", ["o/t/target.gguf"])
def test_a_broken_header_is_no_success(name: str, hub: FakeHub, run: Callable[..., Done]) -> None:
    hub.files[name] = File(b"GGUF but not really" * 100)
    assert f"{models_folder() / name}: " in last_line(run, "models", "pull", "mine")


def test_a_wrong_hash(hub: FakeHub, run: Callable[..., Done]) -> None:
    hub.files["o/t/target.gguf"].digest = "0" * 64
    said = last_line(run, "models", "pull", "mine")
    assert f"expected {'0' * 64}" in said
    assert visible() == ["o/t/target.gguf.mismatch"]


def test_missing_and_gated_files(hub: FakeHub, fails: Callable[..., str]) -> None:
    hub.files["o/d/model.safetensors"].error = (403, "GatedRepo")
    assert "o/d asks for an account that accepted its terms" in fails(3, "models", "pull", "mine")
    del hub.files["o/t/target.gguf"]
    assert "o/t has no file 'target.gguf'" in fails(3, "models", "pull", "mine")
    assert visible() == [], "all is asked for before the first byte"


def test_offline(hub: FakeHub, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids" in fails(1, "models", "pull", "mine")
    assert hub.requests == []


def test_no_space(hub: FakeHub, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1000))
    assert "0.00 GB are free" in fails(1, "models", "pull", "mine")


def test_what_nothing_runs_is_not_fetched(hub: FakeHub, home: Path, fails: Callable[..., str]) -> None:
    register(home, WAITING)
    assert "no backend runs 'waiting' yet" in fails(3, "models", "pull", "waiting")


@pytest.mark.parametrize("revision", [""])
def test_a_bad_revision(revision: str, hub: FakeHub, fails: Callable[..., str]) -> None:
    assert "--revision: " in fails(2, "models", "pull", "mine", "--revision", revision)
    assert "has no revision" in fails(2, "models", "pull", "embedded", "--revision", "main")


# rm


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


def test_rm_keeps_what_another_pair_here_uses(hub: FakeHub, run: Callable[..., Done], home: Path) -> None:
    (home / "config" / "models.toml").write_text(ENTRY + SECOND)
    for spec in ("mine", "second", OTHER_TARGET):
        assert run("models", "pull", spec).code == 0
    done = run("models", "rm", "mine", "--yes")
    assert done.out.count("kept, another pair here uses it") == 2
    assert visible() == ["o/d/config.json", "o/d/model.safetensors", "o/t/other.gguf", "o/t/second.gguf"]
    run("models", "rm", "second", "--yes")
    assert visible() == ["o/d/config.json", "o/d/model.safetensors", "o/t/other.gguf"]
    run("models", "rm", OTHER_TARGET, "--yes")
    assert visible() == []


def test_rm_asks(hub: FakeHub, fails: Callable[..., str], run: Callable[..., Done]) -> None:
    run("models", "pull", "mine")
    assert "add --yes or --dry-run" in fails(2, "models", "rm", "mine")
    assert visible() == PULLED


@pytest.mark.parametrize(("answer", "left"), [("y\n", []), ("n\n", PULLED)])
def test_rm_takes_no_for_an_answer(
    answer: str, left: list[str], hub: FakeHub, run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    run("models", "pull", "mine")
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _prompt="": terminal.readline().rstrip("\n"))
    assert run("models", "rm", "mine").code == (130 if left else 0)
    assert visible() == left


def test_rm_refuses_what_it_did_not_fetch(hub: FakeHub, fails: Callable[..., str], tiny_pair: Path) -> None:
    for spec in ("embedded", tiny_pair / "target.gguf"):
        assert "was not downloaded by localdflash" in fails(3, "models", "rm", spec, "--yes")
    assert (tiny_pair / "target.gguf").exists()


def test_a_cut_file_is_refused_and_healed(hub: FakeHub, run: Callable[..., Done], tmp_path: Path) -> None:
    run("models", "pull", "mine")
    target = models_folder() / "o" / "t" / "target.gguf"
    target.write_bytes(target.read_bytes()[:-1])
    code = tmp_path / "app.py"
    code.write_text("x")
    assert "were verified" in last_line(run, "complete", f"{code}:1:1", "--pair", "mine", "--no-daemon")
    assert "set aside" in last_line(run, "models", "pull", "mine")
    assert run("models", "pull", "mine").code == 0
    assert records.current(target)
