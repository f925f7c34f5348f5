"""Run all GPU measurements: `python lab/scripts/gpu/gpu_run.py --json bench/results/gpu.json`, or `make gpu-bench`.

Every phase runs in its own process, so that a failure, a hang or a lost GPU does not affect the others. A phase has a
time limit and saves its results after every measurement. `--only` runs some phases and keeps the results of the others
in the file. Needs torch, triton, numpy, safetensors and, for the tests, pytest; the package need not be installed.
`--device cpu --tiny` tests the scripts in Triton's interpreter.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

import localdflash  # noqa: E402 (the path above comes first)

if not (ROOT / "localdflash" / "kernels").exists():
    localdflash.__path__.append(str(ROOT))  # an uninstalled source tree has kernels/ next to the package

# Time limits in seconds, in the order of running; 25 minutes in total.
PHASES = {
    "environment": 30,
    "correctness": 330,
    "steps": 300,
    "kernels": 150,
    "boundary": 40,
    "embedded": 100,
    "tuning": 90,
    "llama": 450,  # mostly compilation; the next run continues it
}


def main() -> int:
    """Run the requested phases and print a summary; return 1 if one of them failed or ran out of time."""
    arguments = _arguments()
    if arguments.phase:
        run_phase(arguments.phase, arguments)
        return 0
    phases = arguments.only.split(",") if arguments.only else list(PHASES)
    if unknown := [phase for phase in phases if phase not in PHASES]:
        sys.exit(f"--only {', '.join(unknown)}: unknown phase (expected {', '.join(PHASES)})")
    for phase in phases:
        print(f"{phase} ({PHASES[phase] * arguments.patience:.0f} s at most)", file=sys.stderr, flush=True)
        _run_in_process(phase, arguments)
    from localdflash.lab.scripts.gpu.gpu_summary import lines

    document = _read(arguments.json)
    print("\n".join(lines(document["phases"])))
    return int(any(document["phases"][phase]["status"] != "done" for phase in phases))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="results; phases that are not run are kept")
    parser.add_argument("--only", default="", help=f"phases, with commas: {', '.join(PHASES)}")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "localdflash-gpu-bench",
                        help="where 7 GB of models and the build of llama.cpp go")  # fmt: skip
    parser.add_argument("--llama-source", type=Path, help="sources of llama.cpp: a folder, an sdist, or an archive")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the scripts")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of the phases' time limits")
    parser.add_argument("--commit", default="", help="commit of the sources, if the tree has no git")
    parser.add_argument("--phase", default="", help=argparse.SUPPRESS)  # the phase that this process runs
    return parser.parse_args()


def _run_in_process(phase: str, arguments: argparse.Namespace) -> None:
    """Run a phase in a process, with a time limit; write its status into the results."""
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--phase", phase]
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if arguments.device == "cpu" else {})
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    status, error = "done", ""
    try:
        if process.wait(PHASES[phase] * arguments.patience):
            status = "failed"
    except subprocess.TimeoutExpired:
        status, error = "out of time", "time limit reached; the results so far are here"
    finally:
        _end(process)
    from localdflash.lab import result_file

    conditions = result_file.conditions()
    document = conditions | {"commit": arguments.commit or conditions["commit"]} | _read(arguments.json)
    found = document.setdefault("phases", {}).setdefault(phase, {})
    if status == "failed" and not found.get("error"):
        error = f"the process ended with {process.returncode}"
    found |= {"status": status, "seconds": round(time.perf_counter() - began, 1)} | ({"error": error} if error else {})
    from localdflash.lab.scripts.gpu.gpu_summary import goals

    document["goals"] = {f"{goal.name} {goal.bound}": {"value": goal.value, "met": goal.met}
                      for goal in goals(document["phases"])}  # fmt: skip
    arguments.json.write_text(json.dumps(document, indent=1) + "\n")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process of a phase, with its children, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> dict[str, Any]:
    """Return the results so far; empty if there is no file."""
    return json.loads(path.read_text()) if path.is_file() else {}


def run_phase(name: str, arguments: argparse.Namespace) -> None:
    """Run one phase in this process; an error is saved and ends the process."""
    import torch

    from localdflash.lab.result_file import commit
    from localdflash.lab.scripts.gpu import boundary, correctness, embedded, environment, gpu_llama, kernel_rates, steps
    from localdflash.lab.scripts.gpu.setup import BenchReport, Setup

    runs = {
        "environment": environment.run,
        "correctness": correctness.run,
        "steps": steps.run,
        "kernels": kernel_rates.run,
        "boundary": boundary.run,
        "embedded": embedded.run,
        "llama": gpu_llama.run,
        "tuning": kernel_rates.tune,
    }
    report = BenchReport(arguments.json, name)
    report.start(status="running", commit=arguments.commit or commit(), error="")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        report.put(error="no NVIDIA GPU here")
        sys.exit(1)
    device = torch.device("cuda", torch.cuda.current_device()) if arguments.device == "cuda" else torch.device("cpu")
    setup = Setup(device, arguments.tiny, arguments.folder, arguments.llama_source)
    torch.manual_seed(0)
    try:
        runs[name](setup, report)
    except Exception as error:
        traceback.print_exc()
        report.put(error=f"{type(error).__name__}: {error}"[:4000])
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
