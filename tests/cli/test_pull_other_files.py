"""Models in parts, short names, drafters found by the base model, and large downloads, against a hub on loopback."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import pytest

from localdflash.models.registry.pair_entry import models_folder
from tests.cli.conftest import Done
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
    """Serves the tiny target in parts and in one file, and the drafter of an entry of another repository."""
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
    """The target, which says that it was made of o/tiny."""
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


def visible() -> list[str]:
    found = (path for path in models_folder().rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(str(path.relative_to(models_folder())) for path in found)


def test_a_model_in_parts_is_pulled_listed_planned_run_and_removed(
    hub: FakeHub, run: Callable[..., Done], tmp_path: Path
) -> None:
    planned = run("models", "plan", "hf:o/t:Q8_0", "--backend", "cpu", "--ctx", "256")
    assert planned.code == 0, planned
    other = run("models", "plan", "hf:o/t:Q8_0", "--backend", "llama.cpp", "--ctx", "256")
    assert other.code == 0, other
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


def test_a_part_that_was_cut_is_refused_before_it_is_loaded(hub: FakeHub, run: Callable[..., Done]) -> None:
    run("models", "pull", "hf:o/t")
    part = models_folder() / PARTS[2]
    part.write_bytes(part.read_bytes()[:-1])
    done = run("chat", "-p", "x", "--pair", "hf:o/t", "--no-daemon")
    assert f"{part}: has {part.stat().st_size} bytes, but " in done.err


def test_the_drafter_of_the_base_model_comes_along(hub: FakeHub, run: Callable[..., Done]) -> None:
    done = run("models", "pull", "hf:me/mine-GGUF:Q6_K")
    assert done.code == 0, done
    assert "drafter of tiny: the file says base model o/tiny" in done.err
    assert visible() == ["me/mine-GGUF/mine.i1-Q6_K.gguf", *DRAFTER]
    hub.requests.clear()
    shown = run("models", "show", "hf:me/mine-GGUF").out
    assert "o/d/model.safetensors" in shown
    assert run("models", "list").out.count("hf:me/") == 1
    run("models", "rm", "hf:me/mine-GGUF:Q6_K", "--yes")
    assert visible() == []
    assert hub.requests == []


def test_a_file_here_gets_the_drafter_that_is_here(
    hub: FakeHub, run: Callable[..., Done], tmp_path: Path, fails: Callable[..., str]
) -> None:
    path = tmp_path / "anything.gguf"
    path.write_bytes(hub.files["me/mine-GGUF/mine.i1-Q4_K_M.gguf"].data)
    before = run("models", "show", str(path)).out
    assert f"none here; `localdflash models pull {path}` fetches o/d/model.safetensors" in before
    assert "drafter of tiny: the file says base model o/tiny" in before
    assert hub.requests == [], "a file of this machine asks nobody"
    assert run("models", "pull", str(path)).code == 0
    assert visible() == DRAFTER
    shown = json.loads(run("models", "show", str(path), "--json").out)
    assert shown["drafter"]["repository"] == "o/d"
    assert shown["missing"] == []


# Large downloads


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.cli.pull.MUCH", 1000)


@pytest.mark.usefixtures("little")
def test_much_is_not_fetched_where_nobody_agrees(hub: FakeHub, fails: Callable[..., str]) -> None:
    assert "nobody is here to agree; add --yes" in fails(2, "models", "pull", "hf:o/t:Q8_0")
    assert visible() == []


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(("answer", "there"), [("y\n", PARTS), ("n\n", [])])
def test_a_question_for_who_watches(
    answer: str, there: list[str], hub: FakeHub, run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    run("models", "pull", "hf:o/t:Q8_0")
    assert visible() == there


def test_a_drafter_that_was_found_and_does_not_fit_is_left_out(hub: FakeHub, run: Callable[..., Done]) -> None:
    config = json.loads(hub.files["o/d/config.json"].data)
    config["vocab_size"] += 1  # as where a fine-tune has more tokens
    hub.files["o/d/config.json"] = File(json.dumps(config).encode(), large=False)
    done = run("models", "pull", "hf:me/mine-GGUF:Q6_K")
    assert done.code == 0, done
    assert "the target runs without that drafter: " in done.err
    shown = run("models", "show", "hf:me/mine-GGUF:Q6_K").out
    assert "drafter of tiny: the file says base model o/tiny, but it does not fit: " in shown
    assert json.loads(run("models", "show", "hf:me/mine-GGUF:Q6_K", "--json").out)["drafter"] is None


def test_a_drafter_in_parts_is_pulled_by_its_repository_and_drafts(
    hub: FakeHub, run: Callable[..., Done], tiny_pair: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    shard(tiny_pair / "drafter.safetensors", folder, 2)
    hub.files |= {f"o/split/{file.name}": File(file.read_bytes()) for file in folder.iterdir()}
    hub.files["o/split/config.json"] = File((tiny_pair / "config.json").read_bytes(), large=False)
    names = [f"o/split/model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    pulled = run("models", "pull", "hf:o/t:Q8_0", "--drafter", "hf:o/split")
    assert (pulled.code, pulled.out.count("fetched and verified")) == (0, 6), pulled
    assert visible() == ["o/split/config.json", *names, *PARTS]
    hub.requests.clear()
    assert run("models", "pull", "hf:o/t:Q8_0", "--drafter", "hf:o/split").code == 0
    assert not [path for _, path, _ in hub.requests if "/api/models/" in path], "what is here tells which file"
    again = run("models", "show", "hf:o/t:Q8_0").out
    assert names[0] in again
    (models_folder() / names[1]).unlink()
    missing = run("models", "plan", "hf:o/t:Q8_0", "--backend", "cpu", "--ctx", "256")
    assert missing.code == 0, "a stand-in is planned with until it is here again"
    assert run("models", "rm", "hf:o/t:Q8_0", "--yes").code == 0
    assert visible() == []


def test_a_folder_stands_for_its_drafter(
    hub: FakeHub, run: Callable[..., Done], tiny_pair: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    first = shard(tiny_pair / "drafter.safetensors", folder, 2)
    (folder / "config.json").write_bytes((tiny_pair / "config.json").read_bytes())
    assert run("models", "pull", "hf:o/t:Q8_0", "--drafter", str(folder)).code == 0
    assert str(first) in run("models", "show", "hf:o/t:Q8_0").out
