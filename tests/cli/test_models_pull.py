"""`models pull` and `models rm` against a hub on loopback: pairs, models in parts, found drafters, large downloads."""

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import pytest

from localdflash.base.files.paths import cache_folder
from localdflash.models.registry.pair_entry import models_folder
from localdflash.models.registry.registry import MODELS_FOLDER
from tests.cli.conftest import Done
from tests.support.fake_hub import FakeHub, File, hub_for_tests
from tests.support.registry_entries import WAITING, register
from tests.support.split_files import shard, split_file

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
trained_for = "o/tiny"
"""
SECOND = ENTRY.removeprefix("schema = 1\n").replace('"mine"', '"second"').replace("target.gguf", "second.gguf")
OTHER_TARGET = "hf:o/t/other.gguf"
PARTS = [f"o/parts/Q8_0/tiny-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]


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


def test_pull_errors(hub: FakeHub, run: Callable[..., Done], fails: Callable[..., str], home: Path) -> None:
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
    local_drafter = ENTRY.replace('repository = "o/d"\nfile = "model.safetensors"', 'path = "/absent.gguf"')
    (home / "config" / "models.toml").write_text(local_drafter)
    assert "no file at /absent.gguf" in fails(3, "models", "pull", "mine")
    assert visible() == [], "nothing is downloaded for a pair that cannot be complete"
    register(home, WAITING)
    assert "no backend runs 'waiting'" in fails(3, "models", "pull", "waiting")


def test_rm_deletes_all_of_a_pair(hub: FakeHub, run: Callable[..., Done]) -> None:
    run("models", "pull", "mine")
    total = sum((models_folder() / name).stat().st_size for name in PULLED)
    dry = json.loads(run("models", "rm", "mine", "--dry-run", "--json").out)
    assert visible() == PULLED
    assert (dry["deleted"], dry["bytes"] >= total) == (False, True)
    (packed := cache_folder() / "cpu" / "x.packed").parent.mkdir()
    packed.touch()  # of a model that is gone
    done = run("models", "rm", "mine", "--yes")
    assert (done.code, str(dry["bytes"]) in done.out) == (0, True)
    assert (list(models_folder().iterdir()), packed.exists()) == ([], False)
    assert run("models", "rm", "mine", "--yes").out == "nothing is here\n"


def test_rm_keeps_a_target_that_another_pair_uses(hub: FakeHub, run: Callable[..., Done], home: Path) -> None:
    twin = SECOND.replace("second.gguf", "target.gguf").replace("model.safetensors", "drafter.gguf")
    (home / "config" / "models.toml").write_text(ENTRY + twin)
    for spec in ("mine", "second"):
        assert run("models", "pull", spec).code == 0
    run("models", "rm", "second", "--yes")
    assert visible() == PULLED
    assert run("models", "rm", "mine", "--yes").out.count("kept, ") == 0


def test_rm_keeps_files_that_another_pair_uses(hub: FakeHub, run: Callable[..., Done], home: Path) -> None:
    (home / "config" / "models.toml").write_text(ENTRY + SECOND)
    for spec in ("mine", "second", OTHER_TARGET):
        assert run("models", "pull", spec).code == 0
    done = run("models", "rm", "mine", "--yes")
    assert done.out.count("kept, ") == 2
    remaining = ["o/d/config.json", "o/d/model.safetensors", "o/t/other.gguf", "o/t/second.gguf"]
    assert visible() == remaining
    run("models", "rm", "second", "--yes")
    assert visible() == remaining[:-1]
    run("models", "rm", OTHER_TARGET, "--yes")
    assert visible() == []


@pytest.mark.parametrize(("answer", "remaining"), [("y\n", []), ("n\n", PULLED), ("", PULLED)])
def test_rm_asks_for_confirmation(
    answer: str, remaining: list[str], hub: FakeHub, run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("models", "pull", "mine")
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: bool(answer))
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _prompt="": terminal.readline().rstrip("\n"))
    done = run("models", "rm", "mine")
    assert done.code == (0 if not remaining else 130 if answer else 2)
    assert bool(answer) or "--yes or --dry-run" in done.err
    assert visible() == remaining


def test_rm_refuses_files_that_were_not_downloaded(hub: FakeHub, fails: Callable[..., str], tiny_pair: Path) -> None:
    for spec in ("embedded", tiny_pair / "target.gguf"):
        assert ": not downloaded by localdflash" in fails(3, "models", "rm", spec, "--yes")
    assert (tiny_pair / "target.gguf").exists()


# Models in parts, drafters found by the base model, large downloads


def based_on_tiny(source: Path, folder: Path) -> bytes:
    """Return the target with o/tiny as the base model in its metadata."""
    first = split_file(source, folder, "based", 1)
    reader, path = gguf.GGUFReader(first), folder / "based.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "split.", "general.architecture")):
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, inner[0] if inner else None)
    writer.add_base_model_count(1)
    writer.add_base_model_repo_url(0, "https://huggingface.co/o/tiny")
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def parts_hub(hub: FakeHub, tiny_pair: Path, tmp_path: Path) -> FakeHub:
    """Serve the tiny target in parts too, and a model that names o/tiny as its base."""
    folder = tmp_path / "parts"
    folder.mkdir()
    split_file(tiny_pair / "target.gguf", folder, "tiny-Q8_0", 3)
    hub.files |= {name: File((folder / Path(name).name).read_bytes()) for name in PARTS}
    based = File(based_on_tiny(tiny_pair / "target.gguf", tmp_path))
    hub.files |= {f"me/mine-GGUF/mine.i1-{name}.gguf": based for name in ("Q4_K_M", "Q6_K")}
    return hub


def test_a_model_in_parts_is_pulled_listed_planned_run_and_removed(
    parts_hub: FakeHub, run: Callable[..., Done], tmp_path: Path
) -> None:
    planned = run("models", "plan", "hf:o/parts:Q8_0", "--backend", "cpu", "--context", "256")
    assert planned.code == 0, planned
    assert visible() == []
    pulled = run("models", "pull", "hf:o/parts:Q8_0")
    assert (pulled.code, pulled.out.count("fetched and verified")) == (0, 3), pulled
    assert visible() == PARTS
    parts_hub.requests.clear()
    assert run("models", "pull", "hf:o/parts").out.count("already here, verified") == 3
    for spec in ("hf:o/parts", "hf:o/parts:Q8_0", f"hf:{PARTS[1]}"):
        again = run("models", "plan", spec, "--backend", "cpu", "--context", "256")
        assert again.out.splitlines()[1:3] == planned.out.splitlines()[1:3], "the stand-ins say what the files do"
    listed = run("models", "list").out
    assert listed.count("hf:o/parts/") == 1, "the parts are one model"
    code = tmp_path / "app.py"
    code.write_text("def f():\n    ")
    options = ("--threads", "1", "--max-tokens", "4", "--no-daemon", "--backend", "cpu")
    answer = run("complete", f"{code}:2:5", "--pair", "hf:o/parts:Q8_0", *options)
    assert answer.code == 0, answer
    assert parts_hub.requests == []
    run("models", "rm", "hf:o/parts:Q8_0", "--yes")
    assert visible() == []


def test_a_local_file_gets_the_drafter_of_its_base_model(
    parts_hub: FakeHub, run: Callable[..., Done], tmp_path: Path
) -> None:
    path = tmp_path / "anything.gguf"
    path.write_bytes(parts_hub.files["me/mine-GGUF/mine.i1-Q4_K_M.gguf"].data)
    before = run("models", "show", str(path)).out
    assert f"`localdflash models pull {path}` fetches o/d/model.safetensors" in before
    assert "base model is o/tiny" in before
    assert parts_hub.requests == [], "a local file causes no requests"
    assert run("models", "pull", str(path)).code == 0
    assert visible() == PULLED[:2]
    shown = json.loads(run("models", "show", str(path), "--json").out)
    assert (shown["drafter"]["repository"], shown["missing"]) == ("o/d", [])


@pytest.mark.parametrize(("answer", "downloaded"), [("y\n", PARTS), ("n\n", []), ("", [])])
def test_large_download_needs_confirmation(
    answer: str, downloaded: list[str], parts_hub: FakeHub, run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localdflash.cli.pull.ASK_BYTES", 1000)
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: bool(answer))
    monkeypatch.setattr("sys.stdin", terminal)
    done = run("models", "pull", "hf:o/parts:Q8_0")
    assert visible() == downloaded
    assert bool(answer) or (done.code == 2 and "add --yes" in done.err)


def test_found_drafter_that_does_not_match_is_skipped(parts_hub: FakeHub, run: Callable[..., Done]) -> None:
    config = json.loads(parts_hub.files["o/d/config.json"].data)
    config["vocab_size"] += 1  # as where a fine-tune has more tokens
    parts_hub.files["o/d/config.json"] = File(json.dumps(config).encode(), large=False)
    done = run("models", "pull", "hf:me/mine-GGUF:Q6_K")
    assert done.code == 0, done
    assert "without that drafter" in done.err
    assert "does not match the target" in run("models", "show", "hf:me/mine-GGUF:Q6_K").out
    assert json.loads(run("models", "show", "hf:me/mine-GGUF:Q6_K", "--json").out)["drafter"] is None


def test_a_drafter_in_parts_comes_from_its_repository_or_a_folder(
    parts_hub: FakeHub, run: Callable[..., Done], tiny_pair: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    first = shard(tiny_pair / "drafter.safetensors", folder, 2)
    parts_hub.files |= {f"o/split/{file.name}": File(file.read_bytes()) for file in folder.iterdir()}
    parts_hub.files["o/split/config.json"] = File((tiny_pair / "config.json").read_bytes(), large=False)
    names = [f"o/split/model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    pulled = run("models", "pull", "hf:o/parts:Q8_0", "--drafter", "hf:o/split")
    assert (pulled.code, pulled.out.count("fetched and verified")) == (0, 6), pulled
    assert visible() == [*PARTS, "o/split/config.json", *names]
    parts_hub.requests.clear()
    assert run("models", "pull", "hf:o/parts:Q8_0", "--drafter", "hf:o/split").code == 0
    assert not [path for _, path, _ in parts_hub.requests if "/api/models/" in path], "local files name the drafter's"
    assert names[0] in run("models", "show", "hf:o/parts:Q8_0").out
    assert run("models", "rm", "hf:o/parts:Q8_0", "--yes").code == 0
    assert visible() == []
    (folder / "config.json").write_bytes((tiny_pair / "config.json").read_bytes())
    assert run("models", "pull", "hf:o/parts:Q8_0", "--drafter", str(folder)).code == 0
    assert str(first) in run("models", "show", "hf:o/parts:Q8_0").out
    first.rename(tmp_path / "moved")
    assert run("models", "list").code == 0
    assert f"no file at {first}" in run("models", "show", "hf:o/parts:Q8_0").out
    assert run("models", "pull", "hf:o/parts:Q8_0", "--drafter", "hf:o/split").code == 0
    assert names[0] in run("models", "show", "hf:o/parts:Q8_0").out, "the last one counts"


def test_a_chosen_drafter_that_does_not_match_is_not_remembered(hub: FakeHub, run: Callable[..., Done]) -> None:
    other = str(MODELS_FOLDER / "smollm2" / "drafter.gguf")
    done = run("models", "pull", OTHER_TARGET, "--drafter", other)
    assert (done.code, "hidden size 576" in done.err) == (3, True), done
    assert other not in run("models", "show", OTHER_TARGET).out
    assert run("models", "pull", OTHER_TARGET).code == 0
