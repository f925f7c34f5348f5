"""Phase `correctness`: the GPU tests, each file in a process of its own, since a CUDA error lasts as long as that."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from localdflash.lab.scripts.gpu.setup import BenchReport, Setup

ROOT = Path(__file__).parents[3]
WORKERS = 6
SECONDS_A_TEST = 240  # kernels compile in the first that uses them
# A machine with a GPU may have other versions of what the tests stand on: nothing is strict there.
OPTIONS = ("-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default",
           "-o", f"timeout={SECONDS_A_TEST}")  # fmt: skip


def run(setup: Setup, report: BenchReport) -> None:
    """Run tests/gpu; return counts, and what failed."""
    total: dict[str, Any] = {"tests": 0, "passed": 0, "failed": {}, "skipped": {}, "exit_codes": {}}
    for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py")):
        code, output, results = _run_file(setup, path)
        total["exit_codes"][path.name] = code
        found = outcome(results) if results.is_file() else {"failed": {path.name: output[-2000:]}}
        for name, value in found.items():
            total[name] = total[name] | value if isinstance(value, dict) else total[name] + value
        report.put(**total)
    if total["failed"]:
        raise RuntimeError(f"{len(total['failed'])} GPU tests failed: see `failed`")


def _run_file(setup: Setup, path: Path) -> tuple[int, str, Path]:
    """Exit code, output and JUnit file of one file's tests."""
    setup.folder.mkdir(parents=True, exist_ok=True)
    results = setup.folder / f"{path.stem}.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "pytest", str(path), *OPTIONS, f"--junitxml={results}"]
    if setup.tiny:
        command += ["-k", "accept"]
    gpu = setup.device.type == "cuda"
    if gpu and find_spec("xdist"):
        command += ["-n", str(WORKERS)]  # most of the time goes into compiling kernels
    environment = os.environ | {"LOCALDFLASH_GPU_TESTS": "1" if gpu else "interpreter", "PYTHONPATH": str(ROOT)}
    environment["OMP_NUM_THREADS"] = "2"
    if gpu:
        environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, results


def outcome(results: Path) -> dict[str, Any]:
    """Counts of a JUnit file, and the message of every test that failed."""
    cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    failed, skipped = {}, {}
    for case in cases:
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        for kind in ("failure", "error"):
            if (found := case.find(kind)) is not None:
                failed[name] = f"{found.get('message', '')[:400]} … {(found.text or '')[-600:]}"
        if (found := case.find("skipped")) is not None:
            skipped[name] = found.get("message", "")
    passed = len(cases) - len(failed) - len(skipped)
    return {"tests": len(cases), "passed": passed, "failed": failed, "skipped": skipped}
