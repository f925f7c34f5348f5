from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from localdflash.models.registry import records
from localdflash.models.registry.registry import Registry, load_registry, local_files, missing_files, shipped_file
from tests.support.registry_entries import HASH, HEAD, TARGET, VALID, WAITING, register


@pytest.fixture
def user_file(home: Path) -> Path:
    file = home / "config" / "models.toml"
    file.parent.mkdir(parents=True)
    return file


def test_a_user_entry_replaces_a_shipped_one_whole(user_file: Path) -> None:
    shipped = load_registry()
    user_file.write_text((HEAD + TARGET).replace('"mine"', '"qwen3-8b"'))
    merged = load_registry()
    assert list(merged.pairs) == list(shipped.pairs)
    pair = merged.pair("qwen3-8b")
    assert (pair.description, pair.drafter, pair.layers, pair.licence) == ("A pair of mine", None, None, None)
    assert merged.pair("qwen3-4b") == shipped.pair("qwen3-4b")


def test_the_working_folder_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "workspace"
    for folder in (workspace, workspace / "config", workspace / "localdflash", workspace / ".localdflash"):
        folder.mkdir()
        (folder / "models.toml").write_text(VALID)
    (workspace / "embedded").write_bytes(b"GGUF")
    monkeypatch.chdir(workspace)
    registry = load_registry()
    assert "mine" not in registry.pairs
    assert registry.resolve("embedded").origin == shipped_file()


# Files


def shadow(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"GGUF")
    return file


@pytest.fixture
def mine(user_file: Path) -> Registry:
    user_file.write_text(VALID)
    return load_registry()


def test_missing_files_are_named_with_where_they_go(mine: Registry, home: Path) -> None:
    models = home / "cache" / "models"
    with pytest.raises(ModelError) as caught:
        local_files(mine.pair("mine"))
    assert str(caught.value) == (
        "files of 'mine' are missing: run `localdflash models pull mine` "
        f"(download owner/name-GGUF/target-Q4_K_M.gguf into {models}/owner/name-GGUF; "
        f"download owner/name-DFlash/sub/model.safetensors into {models}/owner/name-DFlash/sub; "
        f"download owner/name-DFlash/sub/config.json into {models}/owner/name-DFlash/sub)"
    )
    assert not models.exists()


def test_local_files(mine: Registry, home: Path) -> None:
    models = home / "cache" / "models"
    target = shadow(models / "owner" / "name-GGUF" / "target-Q4_K_M.gguf")
    with pytest.raises(ModelError, match=r"\(download owner/name-DFlash"):
        local_files(mine.pair("mine"))
    shadow(models / "owner" / "name-DFlash" / "sub" / "config.json")
    safetensors = shadow(models / "owner" / "name-DFlash" / "sub" / "model.safetensors")
    local = local_files(mine.pair("mine"))
    assert (local.target, local.drafter_gguf, local.drafter_safetensors) == (target, None, safetensors)
    assert (local.id, local.fim, local.context) == ("mine", "qwen", 4096)
    gguf = shadow(safetensors.with_suffix(".gguf"))
    assert local_files(mine.pair("mine")).drafter_gguf == gguf
    safetensors.unlink()
    assert local_files(mine.pair("mine")).drafter_safetensors is None
    target.unlink()
    target.mkdir()
    assert missing_files(mine.pair("mine")) == (mine.pair("mine").target,)


def test_a_pair_that_no_backend_runs_is_refused(home: Path) -> None:
    register(home, WAITING)
    with pytest.raises(ModelError, match=r"no backend runs 'waiting' yet; see `localdflash models show"):
        local_files(load_registry().pair("waiting"))


@pytest.mark.parametrize(
    ("target", "beside", "drafter"),
    [
        ("target.gguf", [], None),
        ("target.gguf", ["drafter.gguf"], "gguf"),
        ("my-target-q4.gguf", ["my-drafter-q4.safetensors"], "safetensors"),
        ("model.gguf", ["model.safetensors", "drafter.gguf"], None),
    ],
)
def test_a_pair_by_path(target: str, beside: list[str], drafter: str | None, tmp_path: Path) -> None:
    path = shadow(tmp_path / target)
    for name in beside:
        shadow(tmp_path / name)
    pair = load_registry().resolve(str(path))
    assert pair.id == str(path)
    assert (pair.drafter.format if pair.drafter else None) == drafter
    local = local_files(pair)
    assert local.target == path
    assert [local.drafter_gguf, local.drafter_safetensors].count(None) == (1 if drafter else 2)


@pytest.mark.parametrize("spec", ["no.gguf", "/", "~nobody/x.gguf", "x\x00.gguf"])
def test_a_path_that_is_no_model(spec: str) -> None:
    with pytest.raises(ModelError, match=r"(no such|a folder, not a) .gguf file"):
        load_registry().resolve(spec)


# Verified files


def test_a_file_that_shrank_since_it_was_verified_is_not_loaded(mine: Registry) -> None:
    pair = mine.pair("mine")
    for source in pair.sources:
        records.add(shadow(source.path), "o/n", "0" * 40, "main", HASH)
    local_files(pair)
    for source in pair.sources[:2]:
        source.path.write_bytes(b"GGU")
        with pytest.raises(ModelError, match="expected 4 bytes, got 3"):
            local_files(pair)
        source.path.write_bytes(b"GGUF")
