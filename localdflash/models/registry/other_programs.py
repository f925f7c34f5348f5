"""GGUF files that other programs have downloaded: Ollama, LM Studio, llama.cpp and Hugging Face's cache."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.base.files.json_file import read_json
from localdflash.models.weights.split import first_of

OLLAMA = "ollama:"  # prefix of the name of an Ollama model; Ollama names model files by their hash
OLLAMA_DEFAULTS = ("registry.ollama.ai", "library")  # not part of a model's short name
OLLAMA_WEIGHTS = "application/vnd.ollama.image.model"
OLLAMA_SERVICE = "/usr/share/ollama/.ollama/models"  # models of the systemd service that Ollama's installer sets up
MAX_MANIFEST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """Model file of another program. `spec` names it for `--pair`."""

    program: str
    spec: str
    path: Path


def find_models() -> list[ForeignModel]:
    """Return the model files of other programs, each file once; the first part stands for a split model."""
    models: dict[Path, ForeignModel] = {}
    for name, path in _ollama_models():
        models.setdefault(path.resolve(), ForeignModel("Ollama", OLLAMA + name, path))
    for program, path in _named_files():
        if path.name == first_of(path.name) and os.path.isfile(path):
            models.setdefault(path.resolve(), ForeignModel(program, str(path), path))
    return list(models.values())


def ollama_file(spec: str) -> Path:
    """Return the file of an Ollama model, such as `ollama:qwen3:8b`; ModelError if it is not on this machine."""
    name = spec.removeprefix(OLLAMA)
    models = dict(_ollama_models())
    if path := models.get(name) or models.get(f"{name}:latest"):
        return path
    raise ModelError(f"{spec}: Ollama has no model of this name here; `localdflash models list` shows its models")


def _home() -> Path:
    """Return the home folder; for a user without one, as in some containers, a folder that does not exist."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def _ollama_models() -> Iterator[tuple[str, Path]]:
    """Yield the short name and the weights of each model that a manifest names."""
    own = os.environ.get("OLLAMA_MODELS") or _home() / ".ollama" / "models"
    for folder in map(Path, (own, OLLAMA_SERVICE)):
        for manifest in _find_files(folder / "manifests", "*/*/*/*"):
            host, owner, model, tag = manifest.parts[-4:]
            weights = _ollama_weights(folder, manifest)
            if weights and os.path.isfile(weights):
                prefix = [part for part, usual in zip((host, owner), OLLAMA_DEFAULTS, strict=True) if part != usual]
                yield "/".join([*prefix, f"{model}:{tag}"]), weights


def _ollama_weights(folder: Path, manifest: Path) -> Path | None:
    layers = read_json(manifest, MAX_MANIFEST_BYTES).get("layers")
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == OLLAMA_WEIGHTS:
            kind, _, digest = str(layer.get("digest")).partition(":")
            if kind == "sha256" and digest.isalnum():
                return folder / "blobs" / f"sha256-{digest}"
    return None


def _named_files() -> Iterator[tuple[str, Path]]:
    """Yield the program and the path of each .gguf file in the folders of programs that keep file names."""
    home = _home()
    cache = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    usual = home / "Library" / "Caches" if sys.platform == "darwin" else cache
    llama_cpp = os.environ.get("LLAMA_CACHE") or Path(usual, "llama.cpp")
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or Path(cache, "huggingface"), "hub")
    for program, folder, pattern in (
        ("LM Studio", home / ".lmstudio" / "models", "*/*/*.gguf"),
        ("LM Studio", home / ".cache" / "lm-studio" / "models", "*/*/*.gguf"),
        ("llama.cpp", Path(llama_cpp), "*.gguf"),
        ("Hugging Face", Path(hub), "models--*/snapshots/*/**/*.gguf"),
    ):
        yield from ((program, path) for path in _find_files(folder, pattern))


def _find_files(folder: Path, pattern: str) -> list[Path]:
    """Return the paths that match, sorted; none if the folder cannot be read, such as the home of Ollama's service."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
