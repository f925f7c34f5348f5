"""Paths that the user types: made absolute, because the daemon runs in another folder."""

import os
from pathlib import Path

from localdflash.base.errors import UsageError


def absolute_path(path: str) -> Path:
    """Return an absolute path. `~` is the home folder; the `~name` of an unknown user stays unchanged.

    UsageError for a path that is not UTF-8: JSON could not carry it to the daemon.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        name = path.encode(errors="backslashreplace").decode()
        raise UsageError(f"{name}: the path is not UTF-8; rename the file or folder") from None
    return Path(os.path.expanduser(path)).absolute()  # `Path.expanduser` raises RuntimeError for an unknown user


def absolute_spec(spec: str) -> str:
    """Return an absolute path; return "", `hf:` and `ollama:` names unchanged."""
    return spec if not spec or spec.startswith(("hf:", "ollama:")) else str(absolute_path(spec))


def absolute_pair(pair: str) -> str:
    """Return a pair's id, or its absolute path."""
    is_path = pair.lower().endswith((".gguf", ".safetensors")) or "/" in pair or os.sep in pair
    return absolute_spec(pair) if is_path else pair
