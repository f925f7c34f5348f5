"""Phase `correctness`: the GPU tests, each file in a process of its own, since a CUDA error lasts as long as that.

tests/gpu/conftest.py writes a line for every test as it ends, so that a phase that is ended has results too.
"""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localdflash.lab.scripts.gpu.setup import BenchReport, Setup

ROOT = Path(__file__).parents[3]
MANY_TESTS = "test_kernels.py"  # those of the other files share a loaded pair
WORKERS = max(2, (os.cpu_count() or 4) - 4)  # most of the time goes into compiling kernels
SECONDS_A_TEST = 120  # kernels compile in the first that uses them
OPTIONS = ("-c", str(ROOT / "tests" / "bare.ini"), "-q", "-p", "no:cacheprovider", "-o", f"timeout={SECONDS_A_TEST}")


def run(setup: Setup, report: BenchReport) -> None:
    """Run the files of tests/gpu beside each other; report counts, and what failed, every few seconds."""
    setup.folder.mkdir(parents=True, exist_ok=True)
    paths = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    running = {path.name: _start(setup, path) for path in paths}
    while True:
        codes = {name: process.poll() for name, process in running.items()}
        found = outcome([setup.folder / f"{name}.jsonl" for name in running])
        report.put(exit_codes=codes, **found)
        if None not in codes.values():
            break
        time.sleep(2)
    if found["failed"] or not set(codes.values()) <= {0, 5}:  # 5: `tiny` leaves some files without a test
        raise RuntimeError(f"{len(found['failed'])} GPU tests failed: see `failed`")


def _start(setup: Setup, path: Path) -> "subprocess.Popen[bytes]":
    """Start one file's tests; their lines and their output go into the folder."""
    lines, output = (setup.folder / f"{path.name}.{kind}" for kind in ("jsonl", "log"))
    lines.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "pytest", str(path), *OPTIONS]
    if setup.tiny:
        command += ["-k", "accept"]
    on_gpu = setup.device.type == "cuda"
    if on_gpu and path.name == MANY_TESTS and find_spec("xdist"):
        command += ["-n", str(WORKERS)]
    environment = os.environ | {
        "LOCALDFLASH_GPU_TESTS": "1" if on_gpu else "interpreter",
        "LOCALDFLASH_GPU_LINES": str(lines),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "2",
    }
    if on_gpu:
        environment.pop("TRITON_INTERPRET", None)
    with output.open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)


def outcome(files: list[Path]) -> dict[str, Any]:
    """Count the tests in files of lines; return the end of the report of each that failed, and the slowest."""
    lines = [json.loads(line) for path in files if path.is_file() for line in path.read_text().splitlines()]
    by = {kind: [line for line in lines if line["outcome"] == kind] for kind in ("passed", "failed", "skipped")}
    slowest = sorted(lines, key=lambda line: -line["seconds"])[:10]
    return {
        "tests": len(lines),
        "passed": len(by["passed"]),
        "skipped": len(by["skipped"]),
        "failed": {line["test"]: line["why"] for line in by["failed"]},
        "slowest": {line["test"]: line["seconds"] for line in slowest},
    }
