"""Paths that the user types: made absolute, because the daemon runs in another folder."""

import os
from pathlib import Path


def absolute_path(path: str) -> Path:
    """Return an absolute path. `~` is the home folder; the `~name` of an unknown user stays unchanged."""
    return Path(os.path.expanduser(path)).absolute()  # `Path.expanduser` raises RuntimeError for an unknown user


def absolute_spec(spec: str) -> str:
    """Return an absolute path; return "", `hf:` and `ollama:` names unchanged."""
    return spec if not spec or spec.startswith(("hf:", "ollama:")) else str(absolute_path(spec))


def absolute_pair(pair: str) -> str:
    """Return a pair's id, or its absolute path."""
    is_path = pair.lower().endswith((".gguf", ".safetensors")) or "/" in pair or os.sep in pair
    return absolute_spec(pair) if is_path else pair
