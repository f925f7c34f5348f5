"""Models in parts, short names, drafters found by the base model, and large downloads, from a hub on loopback."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import pytest

from tests.cli.conftest import Done
from tests.cli.test_models_pull import visible
from tests.support.fake_hub import FakeHub, File, hub_for_tests
from tests.support.split_files import shard, split_file

PARTS = [f"o/t/Q8_0/tiny-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
DRAFTER = ["o/d/config.json", "o/d/model.safetensors"]
ENTRY = """\
schema = 1

[[pair]]
id = "tiny"
description = "A pair of mine"
backends = ["llama.cpp"]

[pair.target]
repository = "o/tiny-GGUF"
file = "tiny-Q4_K_M.gguf"

[pair.drafter]
kind = "dflash"
repository = "o/d"
file = "model.safetensors"
trained_for = "o/tiny"
"""


@pytest.fixture
def hub(home: Path, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Serve the tiny target in parts and in one file, and the drafter of an entry of another repository."""
    registry = home / "config" / "models.toml"
    registry.parent.mkdir(parents=True)
    registry.write_text(ENTRY)
    folder = tmp_path / "parts"
    folder.mkdir()
    split_file(tiny_pair / "target.gguf", folder, "tiny-Q8_0", 3)
    with hub_for_tests(tmp_path, monkeypatch) as running:
        running.files |= {name: File((folder / Path(name).name).read_bytes()) for name in PARTS}
        running.files["o/d/model.safetensors"] = File((tiny_pair / "drafter.safetensors").read_bytes())
        running.files["o/d/config.json"] = File((tiny_pair / "config.json").read_bytes(), large=False)
        running.files["me/mine-GGUF/mine.i1-Q4_K_M.gguf"] = File(based_on_tiny(tiny_pair / "target.gguf", tmp_path))
        running.files["me/mine-GGUF/mine.i1-Q6_K.gguf"] = running.files["me/mine-GGUF/mine.i1-Q4_K_M.gguf"]
        yield running


def based_on_tiny(source: Path, folder: Path) -> bytes:
    """Return the target with metadata that name o/tiny as its base model."""
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


def test_a_model_in_parts_is_pulled_listed_planned_run_and_removed(
    hub: FakeHub, run: Callable[..., Done], tmp_path: Path
) -> None:
    planned = run("models", "plan", "hf:o/t:Q8_0", "--backend", "cpu", "--ctx", "256")
    assert planned.code == 0, planned
    assert visible() == []
    pulled = run("models", "pull", "hf:o/t:Q8_0")
    assert (pulled.code, pulled.out.count("fetched and verified")) == (0, 3), pulled
    assert visible() == PARTS
    hub.requests.clear()
    assert run("models", "pull", "hf:o/t").out.count("already here, verified") == 3
    for spec in ("hf:o/t", "hf:o/t:Q8_0", f"hf:{PARTS[1]}"):
        again = run("models", "plan", spec, "--backend", "cpu", "--ctx", "256")
        assert again.out.splitlines()[1:3] == planned.out.splitlines()[1:3], "the stand-ins say what the files do"
    listed = run("models", "list").out
    assert listed.count("hf:o/t/") == 1, "the parts are one model"
    code = tmp_path / "app.py"
    code.write_text("def f():\n    ")
    how = ("--threads", "1", "--max-tokens", "4", "--no-daemon", "--backend", "cpu")
    answer = run("complete", f"{code}:2:5", "--pair", "hf:o/t:Q8_0", *how)
    assert answer.code == 0, answer
    assert hub.requests == []
    run("models", "rm", "hf:o/t:Q8_0", "--yes")
    assert visible() == []


def test_a_local_file_gets_the_drafter_of_its_base_model(
    hub: FakeHub, run: Callable[..., Done], tmp_path: Path
) -> None:
    path = tmp_path / "anything.gguf"
    path.write_bytes(hub.files["me/mine-GGUF/mine.i1-Q4_K_M.gguf"].data)
    before = run("models", "show", str(path)).out
    assert f"`localdflash models pull {path}` fetches o/d/model.safetensors" in before
    assert "base model o/tiny" in before
    assert hub.requests == [], "a local file causes no requests"
    assert run("models", "pull", str(path)).code == 0
    assert visible() == DRAFTER
    shown = json.loads(run("models", "show", str(path), "--json").out)
    assert (shown["drafter"]["repository"], shown["missing"]) == ("o/d", [])


@pytest.mark.parametrize(("answer", "there"), [("y\n", PARTS), ("n\n", []), ("", [])])
def test_a_large_download_needs_a_yes(
    answer: str, there: list[str], hub: FakeHub, run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localdflash.cli.pull.ASK_BYTES", 1000)
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: bool(answer))
    monkeypatch.setattr("sys.stdin", terminal)
    done = run("models", "pull", "hf:o/t:Q8_0")
    assert visible() == there
    assert bool(answer) or (done.code == 2 and "add --yes" in done.err)


def test_a_found_drafter_that_does_not_fit_is_left_out(hub: FakeHub, run: Callable[..., Done]) -> None:
    config = json.loads(hub.files["o/d/config.json"].data)
    config["vocab_size"] += 1  # as where a fine-tune has more tokens
    hub.files["o/d/config.json"] = File(json.dumps(config).encode(), large=False)
    done = run("models", "pull", "hf:me/mine-GGUF:Q6_K")
    assert done.code == 0, done
    assert "without that drafter" in done.err
    assert "does not fit" in run("models", "show", "hf:me/mine-GGUF:Q6_K").out
    assert json.loads(run("models", "show", "hf:me/mine-GGUF:Q6_K", "--json").out)["drafter"] is None


def test_a_drafter_in_parts_comes_from_its_repository_or_a_folder(
    hub: FakeHub, run: Callable[..., Done], tiny_pair: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    first = shard(tiny_pair / "drafter.safetensors", folder, 2)
    hub.files |= {f"o/split/{file.name}": File(file.read_bytes()) for file in folder.iterdir()}
    hub.files["o/split/config.json"] = File((tiny_pair / "config.json").read_bytes(), large=False)
    names = [f"o/split/model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    pulled = run("models", "pull", "hf:o/t:Q8_0", "--drafter", "hf:o/split")
    assert (pulled.code, pulled.out.count("fetched and verified")) == (0, 6), pulled
    assert visible() == ["o/split/config.json", *names, *PARTS]
    hub.requests.clear()
    assert run("models", "pull", "hf:o/t:Q8_0", "--drafter", "hf:o/split").code == 0
    assert not [path for _, path, _ in hub.requests if "/api/models/" in path], "local files name the drafter's"
    assert names[0] in run("models", "show", "hf:o/t:Q8_0").out
    assert run("models", "rm", "hf:o/t:Q8_0", "--yes").code == 0
    assert visible() == []
    (folder / "config.json").write_bytes((tiny_pair / "config.json").read_bytes())
    assert run("models", "pull", "hf:o/t:Q8_0", "--drafter", str(folder)).code == 0
    assert str(first) in run("models", "show", "hf:o/t:Q8_0").out
