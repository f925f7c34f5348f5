"""Tests that need an NVIDIA GPU: `make gpu-test`, or LOCALDFLASH_GPU_TESTS=1 and pytest on this folder.

LOCALDFLASH_GPU_TESTS=interpreter runs them on a CPU, on small shapes, in Triton's interpreter: to test the
tests. Without the variable they are skipped, since the other tests set up the interpreter for the whole process.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import localdflash

ROOT = Path(__file__).parents[2]
MODE = os.environ.get("LOCALDFLASH_GPU_TESTS", "")

if not (ROOT / "localdflash" / "kernels").exists():
    localdflash.__path__.append(str(ROOT))  # in a source tree that is not installed, kernels/ lies next to the package


def _reason() -> str:
    """Return the reason why these tests cannot run, or ""."""
    if MODE == "interpreter":
        return ""
    if MODE != "1":
        return "GPU tests run by themselves: `make gpu-test`"
    return "" if torch.cuda.is_available() else "no NVIDIA GPU here"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and skip them if they cannot run."""
    reason = _reason()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append the result of a test to the file LOCALDFLASH_GPU_LINES, which the GPU benchmark reads."""
    path = os.environ.get("LOCALDFLASH_GPU_LINES")
    if not path or "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.outcome == "passed"):
        return
    line = {"test": report.nodeid.rsplit("/", 1)[-1], "outcome": report.outcome, "seconds": round(report.duration, 2)}
    with Path(path).open("a") as file:
        file.write(json.dumps(line | {"why": report.longreprtext[-1500:]}) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """End an xdist worker whose GPU no longer answers; xdist starts another one."""
    if MODE != "1" or "PYTEST_XDIST_WORKER" not in os.environ:
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        os._exit(1)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Return the device of the kernels."""
    return torch.device("cpu") if MODE == "interpreter" else torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def _ordered_dot() -> Iterator[None]:
    """Sum the interpreter's products in the order of k."""
    if MODE != "interpreter":
        yield
        return
    from tests.support.interpreter import ordered_dot

    with ordered_dot():
        yield
