"""Optional dependencies: the modules behind each extra of `pip install 'localdflash[EXTRA]'`."""

import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

from localdflash.base.errors import MissingExtra

Extra = Literal["llama", "cuda", "torch", "train"]
MODULES: dict[Extra, tuple[str, ...]] = {
    "llama": ("llama_cpp",),
    "cuda": ("torch",) if sys.platform == "darwin" else ("torch", "triton"),
    "train": ("torch", "matplotlib"),
    "torch": ("torch",),
}


def missing_module(extra: Extra) -> str:
    """Return the first module of an extra that is not installed, "" if all are."""
    return next((module for module in MODULES[extra] if find_spec(module) is None), "")


def require(extra: Extra, subject: str) -> None:
    """Raise MissingExtra if an extra is not installed; the message names `subject` and the install command."""
    if module := missing_module(extra):
        raise MissingExtra(f"{subject}: needs {module}, which is not installed; run `{install_command(extra)}`")


def install_command(extra: Extra) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'localdflash[{extra}]'"


def version_of(package: str) -> str:
    """Return the version of an installed package, "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
