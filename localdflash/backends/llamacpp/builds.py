"""How the installed llama-cpp-python was built, told by its files: cheap, for nothing of it is loaded."""

import os
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

BACKEND = "LOCALDFLASH_GGML_BACKEND"  # names one more library of a backend
NO_GPU = frozenset({"base", "cpu", "blas", "rpc", "zdnn", "zendnn"})


def library_folder() -> Path | None:
    """Where the libraries of llama-cpp-python lie; None if it is not installed."""
    spec = find_spec("llama_cpp")
    places = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(place) / "lib" for place in places), None)


def gpu_backends() -> Collection[str]:
    """The backends for GPUs that are there, by ggml's names: "cuda", "hip", "vulkan", "metal"; a CPU build has none."""
    folder = library_folder()
    names = [path.name for path in folder.iterdir()] if folder and folder.is_dir() else []
    if plugged := os.environ.get(BACKEND):
        names.append(Path(plugged).name)
    stems = [name.removeprefix("lib").partition(".")[0] for name in names]
    return {stem.split("-")[1] for stem in stems if stem.startswith("ggml-")} - NO_GPU
