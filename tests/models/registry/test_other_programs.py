"""Model files of other programs are found, named and used in place."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import ModelError
from localdflash.models.registry.other_programs import find_models
from localdflash.models.registry.registry import load_registry
from tests.support.gguf_files import write_header

Place = Callable[[str], Path]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Write a small GGUF file at a path below an empty home folder."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("localdflash.models.registry.other_programs.OLLAMA_SERVICE", str(tmp_path / "service"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama.cpp"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)

    def place(path: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        return write_header(file, "a", "b", name="Tiny 1B")

    return place


def write_manifest(folder: Path, name: str, digest: str) -> None:
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest},
    ]
    file = folder / "manifests" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))


@pytest.mark.parametrize(
    ("program", "path"),
    [
        ("LM Studio", ".lmstudio/models/owner/name/tiny.gguf"),
        ("llama.cpp", "llama.cpp/owner_name_tiny.gguf"),
        ("Hugging Face", "hub/models--owner--name/snapshots/1a2b/tiny.gguf"),
    ],
)
def test_files_of_a_program_are_pairs_by_their_path(place: Place, program: str, path: str) -> None:
    file = place(path)
    (pair,) = load_registry().in_other_programs()
    assert (pair.id, pair.target.path, pair.description) == (str(file), file, f"Tiny 1B, downloaded by {program}")
    assert load_registry().resolve(pair.id).target.path == file


def test_ollamas_models_are_named_as_ollama_names_them(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / ".ollama" / "models"
    blob = place(".ollama/models/blobs/sha256-1f")
    write_manifest(folder, "registry.ollama.ai/library/tiny/latest", "sha256:1f")
    (pair,) = load_registry().in_other_programs()
    assert (pair.id, pair.target.path) == ("ollama:tiny:latest", blob)
    assert load_registry().resolve("ollama:tiny").target.path == blob
    other = place(".ollama/models/blobs/sha256-2e")
    write_manifest(folder, "hf.co/owner/tiny/Q4_K_M", "sha256:2e")
    assert load_registry().resolve("ollama:hf.co/owner/tiny:Q4_K_M").target.path == other
    with pytest.raises(ModelError, match="ollama:large: Ollama has no model of this name here"):
        load_registry().resolve("ollama:large")


def test_the_same_file_is_found_once(place: Place, tmp_path: Path) -> None:
    file = place(".lmstudio/models/owner/name/tiny.gguf")
    link = tmp_path / "hub" / "models--owner--name" / "snapshots" / "1a2b" / "tiny.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(file)
    assert [found.path for found in find_models()] == [file]


@pytest.mark.parametrize(
    "manifest", ['{"layers": 5}', "{", '{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}']
)
def test_damaged_files_and_manifests_are_left_out(place: Place, tmp_path: Path, manifest: str) -> None:
    place(".lmstudio/models/owner/name/tiny.gguf").write_bytes(b"GGUF")
    write_manifest(tmp_path / ".ollama" / "models", "registry.ollama.ai/library/tiny/latest", "sha256:../../../x")
    write_manifest(tmp_path / "service", "registry.ollama.ai/library/tiny/latest", "sha256:33")
    (tmp_path / "service/manifests/registry.ollama.ai/library/tiny/latest").write_text(manifest)
    assert list(load_registry().in_other_programs()) == []


@pytest.mark.parametrize("denied", ["service", "service/models/blobs", "hub"])
def test_folders_of_another_user_are_left_out(
    place: Place, tmp_path: Path, denied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home of Ollama's service is open to its user only, on Ubuntu for example."""
    monkeypatch.setattr("localdflash.models.registry.other_programs.OLLAMA_SERVICE", str(tmp_path / "service/models"))
    file = place(".lmstudio/models/owner/name/tiny.gguf")
    for name in ("service/models/blobs/sha256-1f", "hub/models--owner--name/snapshots/1a2b/other.gguf"):
        if name.startswith(denied):
            place(name)
    write_manifest(tmp_path / "service/models", "registry.ollama.ai/library/tiny/latest", "sha256:1f")

    def refuse(name: str) -> None:
        original = getattr(os, name)

        def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if not isinstance(path, int) and Path(path).is_relative_to(tmp_path / denied):
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("stat", "scandir"):
        refuse(name)
    assert [found.path for found in find_models()] == [file]


def test_a_user_without_a_home_has_no_such_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert find_models() == []
