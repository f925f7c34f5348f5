"""Measure start-up: import, --help, first token with and without a running daemon, warm completions, memory.

`python lab/scripts/startup.py [--pair PAIR] --json FILE`. Times are medians of several whole processes; the very first
start is reported separately. `--pair` is the chat pair.
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
from typing import Any

from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab import result_file
from localdflash.lab.bench.prompt_set import load
from localdflash.lab.scripts.support.direct_answer import answer_directly
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.api.completion_request import prepare_middle
from localdflash.server.client import find_daemon

ROUNDS = 11
QUESTION = (  # about a hundred tokens
    "I have a Python program that reads a large file of measurements, one in each line, with a time, the name of a"
    " sensor and a value. It should say for each sensor how many values there are, the smallest and the largest one and"
    " their mean, and leave out lines that are broken, but say at the end how many there were. At the moment it keeps"
    " all lines in a list, and the memory is not enough. How would you write it so that it reads the file only once?"
)
LAST_CHARS = 12  # characters typed after the last prefill
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
    for _ in range(ROUNDS + 1):
        subprocess.run([program, "serve", "--stop"], check=True, capture_output=True)
        started.append(_run_seconds(*ask))
    running = [_run_seconds(*ask) for _ in range(ROUNDS)]
    times = {"engine_first_ever": started[0], "engine_started": median(started[1:]), "engine_running": median(running)}
    return {name: round(spent * 1e3, 1) for name, spent in times.items()}


def warm_chat(typed: int = 0) -> dict[str, float]:
    """Return the median times of later chat turns; the first `typed` characters of a question are prefilled earlier."""
    engine = find_daemon()
    assert engine
    messages: list[dict[str, str]] = []
    turns: list[tuple[float, float, float]] = []
    for turn in range(ROUNDS + 1):
        number = turn + (1 if typed else 101)  # other numbers in each chat, so that no cached prefix is shared
        question = {"role": "user", "content": f"{number}. {QUESTION}"}
        if typed:
            draft = {**question, "content": question["content"][:typed]}
            engine.post("/v1/chat/completions", {"messages": [*messages, draft], "max_tokens": 0})
        messages.append(question)
        timings: dict[str, Any] = {}
        began, first, text = time.perf_counter(), 0.0, ""
        request = {"messages": messages, "stream": True, "temperature": 0, "max_tokens": 16}
        for event in engine.stream("/v1/chat/completions", request):
            new = event["choices"][0]["delta"].get("content")
            first = first or (time.perf_counter() - began if new else 0.0)
            text, timings = text + (new or ""), event.get("timings", timings)
        messages.append({"role": "assistant", "content": text})
        turns.append((first * 1e3, timings["prompt_n"], timings["prompt_ms"]))
    total, tokens, prompt = (median(times) for times in zip(*turns[1:], strict=True))
    return {"first_token_ms": round(total, 1), "prompt_ms": round(prompt, 1), "prompt_tokens": tokens}


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
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "example.py"
        source.write_text("def double(number):\n    ")
        command = [program, "complete", f"{source}:2:5", "--threads", str(args.threads), "--no-daemon"]
        peak = subprocess.run(
            [sys.executable, "-c", PRINT_PEAK_MEMORY, *command], check=True, capture_output=True, text=True
        )
        process_seconds = median_seconds(*command)
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as home:
        os.environ["LOCALDFLASH_HOME"] = home
        first = first_tokens(program, args.pair, args.threads)
        chat, typed = warm_chat(), warm_chat(len(QUESTION) - LAST_CHARS)
        subprocess.run([program, "serve", "--stop"], check=True, capture_output=True)
    warm = warm_completions(args.threads)
    result = {
        "threads": args.threads,
        "pair": args.pair,
        "import_ms": round(import_ms(), 1),
        "help_ms": round(median_seconds(program, "--help") * 1e3, 1),
        "first_token_ms": first,
        "warm_chat": chat,
        "warm_chat_read_while_typed": typed,
        "complete_process_ms": round(process_seconds * 1e3, 1),
        "complete_peak_memory_mb": round(int(peak.stdout) / 1024, 1),
        "warm_completion_32_tokens_ms": {"p50": round(median(warm), 1), "max": round(max(warm), 1)},
    }
    result_file.write(args.json, result)
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
