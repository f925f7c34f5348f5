"""Phase `correctness`: the GPU tests, each file in its own process, since a CUDA error persists for a process.

tests/gpu/conftest.py writes one line per finished test, so that an interrupted phase has results too.
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
MANY_TESTS = "test_kernels.py"  # runs in WORKERS processes; the tests of each other file share a loaded pair
WORKERS = max(2, (os.cpu_count() or 4) - 4)  # they mostly compile kernels
SECONDS_PER_TEST = 120  # the first test of a kernel compiles it
OPTIONS = ("-c", str(ROOT / "tests" / "bare.ini"), "-q", "-p", "no:cacheprovider", "-o", f"timeout={SECONDS_PER_TEST}")


def run(setup: Setup, report: BenchReport) -> None:
    """Run the files of tests/gpu in parallel; report results every 2 seconds. RuntimeError if a test or file failed."""
    setup.folder.mkdir(parents=True, exist_ok=True)
    paths = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    running = {path.name: _start(setup, path) for path in paths}
    while True:
        codes = {name: process.poll() for name, process in running.items()}
        results = outcome([setup.folder / f"{name}.jsonl" for name in running])
        report.put(exit_codes=codes, **results)
        if None not in codes.values():
            break
        time.sleep(2)
    if results["failed"] or not set(codes.values()) <= {0, 5}:  # 5: no tests, as `tiny` selects none in some files
        raise RuntimeError(f"{len(results['failed'])} GPU tests failed: see `failed`")


def _start(setup: Setup, path: Path) -> "subprocess.Popen[bytes]":
    """Start the tests of one file; result lines and output go into the folder."""
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
    """Return the counts of the tests in result files, the reports of failed tests, and the slowest tests."""
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
