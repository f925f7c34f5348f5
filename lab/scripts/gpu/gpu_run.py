"""The GPU day in one command: `python lab/scripts/gpu/gpu_run.py --json bench/results/gpu.json`, or `make gpu-bench`.

Every phase runs in a process of its own, so that one that fails, hangs or loses the GPU leaves the others alone; it
has a time budget and saves what it has after every measurement. `--only` runs some phases and keeps what the file has
of the others. Needs torch, triton, numpy, safetensors and, for the tests, pytest; the package need not be installed.
`--device cpu --tiny` tries the scripts in Triton's interpreter.
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
    localdflash.__path__.append(str(ROOT))  # a source tree that was not installed has kernels/ beside the package

# Seconds that each may take, in the order in which they run: 25 minutes in all.
PHASES = {
    "environment": 30,
    "correctness": 330,
    "steps": 300,
    "kernels": 150,
    "boundary": 40,
    "embedded": 100,
    "tuning": 90,
    "llama": 450,  # most of it compiles; another run goes on where this one was ended
}


def main() -> int:
    """Run the phases that were asked for and print a summary; 1 if one has failed."""
    arguments = _arguments()
    if arguments.phase:
        run_phase(arguments.phase, arguments)
        return 0
    phases = arguments.only.split(",") if arguments.only else list(PHASES)
    if unknown := [phase for phase in phases if phase not in PHASES]:
        sys.exit(f"no phase {', '.join(unknown)}: there are {', '.join(PHASES)}")
    for phase in phases:
        print(f"{phase} ({PHASES[phase] * arguments.patience:.0f} s at most)", file=sys.stderr, flush=True)
        _run_apart(phase, arguments)
    from localdflash.lab.scripts.gpu.gpu_summary import lines

    whole = _read(arguments.json)
    print("\n".join(lines(whole["phases"])))
    return int(any(whole["phases"][phase]["status"] != "done" for phase in phases))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="results; phases that are not run are kept")
    parser.add_argument("--only", default="", help=f"phases, with commas: {', '.join(PHASES)}")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "localdflash-gpu-bench",
                        help="where 7 GB of models and the build of llama.cpp go")  # fmt: skip
    parser.add_argument("--llama-source", type=Path, help="sources of llama.cpp: a folder, an sdist, or an archive")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the scripts")
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies the time that a phase may take")
    parser.add_argument("--commit", default="", help="what is measured, where the tree has no git")
    parser.add_argument("--phase", default="", help=argparse.SUPPRESS)  # this process is that phase's own
    return parser.parse_args()


def _run_apart(phase: str, arguments: argparse.Namespace) -> None:
    """Run a phase in a process and end it when its time is up; its status goes into the results."""
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--phase", phase]
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if arguments.device == "cpu" else {})
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    status, error = "done", ""
    try:
        if process.wait(PHASES[phase] * arguments.patience):
            status = "failed"
    except subprocess.TimeoutExpired:
        status, error = "out of time", "what was measured until then is here"
    finally:
        _end(process)
    from localdflash.lab import result_file

    conditions = result_file.conditions()
    whole = conditions | {"commit": arguments.commit or conditions["commit"]} | _read(arguments.json)
    found = whole.setdefault("phases", {}).setdefault(phase, {})
    if status == "failed" and not found.get("error"):
        error = f"the process ended with {process.returncode}"
    found |= {"status": status, "seconds": round(time.perf_counter() - began, 1)} | ({"error": error} if error else {})
    from localdflash.lab.scripts.gpu.gpu_summary import goals

    whole["goals"] = {f"{goal.name} {goal.bound}": {"value": goal.value, "met": goal.met}
                      for goal in goals(whole["phases"])}  # fmt: skip
    arguments.json.write_text(json.dumps(whole, indent=1) + "\n")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of a phase, its own children too."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> dict[str, Any]:
    """The results so far."""
    return json.loads(path.read_text()) if path.is_file() else {}


def run_phase(name: str, arguments: argparse.Namespace) -> None:
    """Run one phase here; an error is saved and ends the process."""
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
