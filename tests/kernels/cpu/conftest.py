"""The CPU engine's library, and its functions for every instruction set."""

import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from localdflash.backends.cpu import cpu_library as installed
from localdflash.backends.cpu.cpu_library import Library

SOURCES = Path(__file__).parents[3] / "kernels" / "cpu"
BUILD = runpy.run_path(str(SOURCES / "sources.py"))


def instruction_sets() -> list[str]:
    """Return the sets of this processor if the installed library reports them, else all that can be compiled here."""
    if not installed.why_unavailable():
        return installed.load().instruction_sets
    return [Path(name).stem.removeprefix("isa_") for name in BUILD["instruction_sets"]()]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Library:
    """Return the installed library if it is newer than its sources, else one compiled for this session."""
    found, newest = installed.find_library(), max(source.stat().st_mtime for source in SOURCES.iterdir())
    if found is not None and found.stat().st_mtime > newest:
        return Library(found)
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.getbasetemp()
    shared = folder if worker_id == "master" else folder.parent  # shared by all xdist workers
    compiled = shared / "libldf.so"
    with FileLock(shared / "libldf.lock"):
        if not compiled.exists():
            try:
                BUILD["compile_library"](compiled)
            except subprocess.CalledProcessError as error:
                pytest.fail(error.stderr, pytrace=False)
    return Library(compiled)


@pytest.fixture(scope="session", params=instruction_sets())
def kernels(request: pytest.FixtureRequest, library: Library) -> Any:
    """Return the table of functions of each instruction set that this processor can run."""
    if request.param not in library.instruction_sets:
        pytest.skip(f"this processor has no {request.param}")
    return library.kernels(request.param)


@pytest.fixture(scope="session")
def all_kernels(library: Library) -> list[Any]:
    """Return the tables of all instruction sets of this processor, the best first and "portable" last."""
    return [library.kernels(name) for name in library.instruction_sets]
