"""Measure start-up: import, --help, first token with and without a running daemon, warm completions, memory.

`PYTHONPATH=. python -P lab/scripts/startup.py [--pair PAIR] --json FILE`. Times are medians of several processes in a
new home. `--pair` is the chat pair.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab import result_file
from localdflash.lab.bench.prompt_set import load
from localdflash.lab.scripts.support.direct_answer import answer_directly
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.api.completion_request import prepare_middle

ROUNDS = 11
PRINT_PEAK_MEMORY = (  # a Python program that runs a command and prints its peak memory in KiB
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


def median_seconds(*command: str) -> float:
    """Return the median wall time of `ROUNDS` runs of a command."""
    return median(_run_seconds(*command) for _ in range(ROUNDS))


def _run_seconds(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def import_ms() -> float:
    """Return the median time of `import localdflash`, measured inside new processes."""
    code = "import time; t = time.perf_counter(); import localdflash; print((time.perf_counter() - t) * 1e3)"
    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True) for _ in range(ROUNDS)]
    return median(float(run.stdout) for run in runs)


def first_tokens(program: str, pair: str, threads: int) -> dict[str, float]:
    """Return the times of `chat` for one token, process start included, with and without a running daemon."""
    run = ["--pair", pair, "--threads", str(threads)]
    ask = [program, "chat", *run, "-p", "Add two numbers.", "--max-tokens", "1"]
    started = []
    for _ in range(ROUNDS):
        subprocess.run([program, "serve", "--stop"], check=True, capture_output=True)
        started.append(_run_seconds(*ask))
    running = [_run_seconds(*ask) for _ in range(ROUNDS)]
    times = {"engine_started": median(started), "engine_running": median(running)}
    return {name: round(spent * 1e3, 1) for name, spent in times.items()}


def warm_completions(threads: int) -> list[float]:
    """Return the milliseconds of one completion of up to 32 tokens for each FIM block prompt, in this process."""
    times = []
    with LoadedPair(Options(threads=threads)) as loaded:
        for prompt in (p for p in load() if p.category == "fim_block"):
            began = time.perf_counter()
            answer_directly(loaded, prepare_middle(loaded, prompt.prefix, prompt.suffix, 32, SamplingParams()))
            times.append((time.perf_counter() - began) * 1e3)
    return times


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="embedded", help="chat pair")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    program = str(Path(sys.executable).with_name("localdflash"))
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as home:
        os.environ["LOCALDFLASH_HOME"] = home
        source = Path(home) / "example.py"
        source.write_text("def double(number):\n    ")
        command = [program, "complete", f"{source}:2:5", "--threads", str(args.threads), "--no-daemon"]
        peak = subprocess.run(
            [sys.executable, "-c", PRINT_PEAK_MEMORY, *command], check=True, capture_output=True, text=True
        )
        process_seconds = median_seconds(*command)
        first = first_tokens(program, args.pair, args.threads)
        subprocess.run([program, "serve", "--stop"], check=True, capture_output=True)
    warm = warm_completions(args.threads)
    result = {
        "threads": args.threads,
        "pair": args.pair,
        "import_ms": round(import_ms(), 1),
        "help_ms": round(median_seconds(program, "--help") * 1e3, 1),
        "first_token_ms": first,
        "complete_process_ms": round(process_seconds * 1e3, 1),
        "complete_peak_memory_mb": round(int(peak.stdout) / 1024, 1),
        "warm_completion_32_tokens_ms": {"p50": round(median(warm), 1), "max": round(max(warm), 1)},
    }
    result_file.write(args.json, result)
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
