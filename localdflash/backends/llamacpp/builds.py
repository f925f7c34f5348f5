"""GPU backends of the installed llama-cpp-python, from its file names, without loading the library."""

import os
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

BACKEND = "LOCALDFLASH_GGML_BACKEND"  # environment variable: path of an additional backend library
NON_GPU_BACKENDS = frozenset({"base", "cpu", "blas", "rpc", "zdnn", "zendnn"})


def library_folder() -> Path | None:
    """Return the folder of llama-cpp-python's libraries; None if it is not installed."""
    spec = find_spec("llama_cpp")
    locations = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(location) / "lib" for location in locations), None)


def gpu_backends() -> Collection[str]:
    """Return ggml's names of the GPU backends ("cuda", "hip", "vulkan", "metal"); empty if there are none."""
    folder = library_folder()
    names = [path.name for path in folder.iterdir()] if folder and folder.is_dir() else []
    if extra_library := os.environ.get(BACKEND):
        names.append(Path(extra_library).name)
    stems = [name.removeprefix("lib").partition(".")[0] for name in names]
    return {stem.split("-")[1] for stem in stems if stem.startswith("ggml-")} - NON_GPU_BACKENDS
