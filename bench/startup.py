"""What a user waits for: import, --help, the first token with and without a running engine, a warm completion of 32
tokens, and the memory of `complete` without the engine.

`python bench/startup.py --json FILE`. Whole processes are timed from outside, medians of several.
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

from localdflash.answers.completion import complete
from localdflash.backend.options import Options
from localdflash.bench.prompt_set import load
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load import LoadedPair
from localdflash.machine.hardware import commit, device

ROUNDS = 11
PEAK = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


def seconds(*command: str) -> float:
    """Median wall time of a process."""
    return median(_timed(*command) for _ in range(ROUNDS))


def _timed(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def import_ms() -> float:
    """Median time of `import localdflash`, taken inside fresh processes."""
    code = "import time; t = time.perf_counter(); import localdflash; print((time.perf_counter() - t) * 1e3)"
    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True) for _ in range(ROUNDS)]
    return median(float(run.stdout) for run in runs)


def first_token_ms(program: str, threads: int, running: bool) -> float:
    """Median time of `chat` for one token, the start of its process included: of the engine's too, if none runs."""
    times = []
    for _ in range(ROUNDS):
        if not running:
            subprocess.run([program, "serve", "--stop"], check=True, capture_output=True)
        times.append(_timed(program, "chat", "-p", "Add two numbers.", "--max-tokens", "1", "--threads", str(threads)))
    return median(times) * 1e3


def warm_completions(threads: int) -> list[float]:
    """Milliseconds of completions of 32 tokens in one process, prompts of the FIM block category, each one new."""
    times = []
    with LoadedPair(Options(threads=threads)) as loaded:
        for prompt in (p for p in load() if p.category == "fim_block"):
            began = time.perf_counter()
            "".join(complete(loaded, prompt.prefix, prompt.suffix, 32, SamplingParams()))
            times.append((time.perf_counter() - began) * 1e3)
    return times


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    program = str(Path(sys.executable).with_name("localdflash"))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "example.py"
        source.write_text("def double(number):\n    ")
        command = [program, "complete", f"{source}:2:5", "--threads", str(args.threads), "--no-daemon"]
        peak = subprocess.run([sys.executable, "-c", PEAK, *command], check=True, capture_output=True, text=True)
        whole = seconds(*command)
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as home:
        os.environ["LOCALDFLASH_HOME"] = home
        engine_too = first_token_ms(program, args.threads, running=False)
        engine_there = first_token_ms(program, args.threads, running=True)
        subprocess.run([program, "serve", "--stop"], check=True, capture_output=True)
    warm = warm_completions(args.threads)
    result = {
        "device": device(),
        "threads": args.threads,
        "commit": commit(),
        "command": f"python bench/startup.py --threads {args.threads}",
        "import_ms": round(import_ms(), 1),
        "help_ms": round(seconds(program, "--help") * 1e3, 1),
        "first_token_ms": {"engine_started": round(engine_too, 1), "engine_running": round(engine_there, 1)},
        "complete_process_ms": round(whole * 1e3, 1),
        "complete_peak_memory_mb": round(int(peak.stdout) / 1024, 1),
        "warm_completion_32_tokens_ms": {"p50": round(median(warm), 1), "max": round(max(warm), 1)},
    }
    args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
