"""Compile all kernels of `make gpu-test` and of a loaded pair with every supported Triton for every chip.

`python -P lab/scripts/gpu/dry_run.py [--triton 3.7.1]... [--chip 86]...` (`make gpu-dry-run`) prints a line for each
Triton and chip, and the cases that do not compile, do not fit, or spill registers in a loop; exit code 1 if there are
any. As on a GPU, warnings are errors and no environment variable applies. pip downloads each Triton once, into
.venv/tritons.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".venv" / "tritons"
CHIPS = (86, 89, 90, 120)
SHARED = {86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376}  # bytes of shared memory that a program may use
PINNED = {"2.11": "3.6.0", "2.12": "3.7.0", "2.13": "3.7.1", "2.14": "3.8.0", "2.15": "3.9.0"}  # torch -> its Triton
Facts = dict[str, Any]


def fetch(version: str) -> Path:
    """Return a folder with that version of Triton, downloaded if missing; CalledProcessError if pip cannot."""
    folder = FOLDER / version
    if not (folder / "triton").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, f"triton=={version}"], env={**os.environ, "PIP_CONSTRAINT": ""}, check=True)
    return folder


def environment(triton: Path) -> dict[str, str]:
    """Return the environment in which Python imports the Triton in that folder, and warnings are errors."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    return variables | {"PYTHONPATH": f"{triton}{os.pathsep}{ROOT}", "PYTHONWARNINGS": "error"}


def compile_cases(module: str, triton: Path, chip: int) -> Facts:
    """Return the JSON that a module of tests/kernels/cuda/aot prints for a chip; RuntimeError with its last output."""
    command = [sys.executable, "-m", f"tests.kernels.cuda.aot.{module}", str(chip)]
    done = subprocess.run(command, cwd=ROOT, env=environment(triton), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    found: Facts = json.loads(done.stdout)[str(chip)]
    return found


def faults(cases: Facts, pairs: Facts, chip: int) -> list[str]:
    """Return a line for each case that does not compile, and for each fault of a compiled kernel."""
    lines = [f"{name}: {facts}" for name, facts in cases.items() if isinstance(facts, str)]
    for name, kernel in list_kernels(cases, pairs):
        if kernel["undefined"]:
            problem = f"was miscompiled, it reads an undefined register: {kernel['undefined'][0]}"
        elif kernel["shared"] > SHARED[chip]:
            problem = f"needs {kernel['shared']} bytes of shared memory"
        elif kernel["spills"]:
            problem = f"spills registers in a loop, {kernel['spills']} times"
        else:
            continue
        lines.append(f"{name}: {kernel['kernel']} {problem}")
    return lines


def list_kernels(cases: Facts, pairs: Facts) -> list[tuple[str, Facts]]:
    """Return every compiled kernel, with the name of its case or pair."""
    found = [(name, kernel) for name, facts in cases.items() if not isinstance(facts, str) for kernel in facts]
    return found + [(f"a {name} pair", kernel) for name, facts in pairs.items() for kernel in facts["kernels"]]


def main() -> int:
    """Compile all combinations and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", action="append", choices=sorted(PINNED.values()))
    parser.add_argument("--chip", action="append", type=int, choices=CHIPS)
    args = parser.parse_args()
    failed = False
    for version in args.triton or PINNED.values():
        folder = fetch(version)
        for chip in args.chip or CHIPS:
            began = time.monotonic()
            cases, pairs = compile_cases("gpu_cases", folder, chip), compile_cases("whole_pair", folder, chip)
            found = faults(cases, pairs, chip)
            failed = failed or bool(found)
            counts = f"{len(cases)} cases, {len(list_kernels({}, pairs))} kernels of pairs"
            lines = [f"triton {version}, sm_{chip}: {counts}, {time.monotonic() - began:.0f} s"]
            print(*lines, *(f"  {line}" for line in found), sep="\n", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
