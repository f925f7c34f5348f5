"""Decoding and verify batches on this CPU against llama.cpp and ik_llama.cpp: same files, same threads, interleaved.

`PYTHONPATH=. python -P lab/scripts/peers/cpu_peers.py --folder DIR --ik-source DIR [--threads 2] [--json FILE]
[--models smollm2-135m,0.6B,1.7B] [--types Q4_K] [--rounds 5]`

Both peers are built into --folder first, with their defaults; --ik-source is a checkout of ik_llama.cpp. A batch of n
is one step of n sequences after a common prompt for them (`llama-batched-bench -pps`), and a verify step of n tokens
for us: all compute the logits of each token. A round's time is the mean of its steps, and the fastest round counts.
Each peer runs with and without flash attention, ik_llama.cpp also with run-time repacking, and its best mode counts at
each width.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.base.machine.cores import physical_cores
from localdflash.base.machine.hardware import bandwidth
from localdflash.lab import result_file
from localdflash.lab.scripts.cpu_context import fill
from localdflash.lab.scripts.cpu_prompts import files
from localdflash.lab.scripts.cpu_shapes import forward_ms
from localdflash.lab.scripts.peers.llama_source import CMAKE_OPTIONS, llama_source, run
from localdflash.loading.plan.here import bytes_per_token
from localdflash.models.weights.gguf import read_header

WIDTHS = (1, 4, 8, 16)
CONTEXT, STEPS = 256, 8  # tokens of the common prompt, and steps after it in a round
PROGRAM = "llama-batched-bench"
MODES = {
    "llama.cpp": (("-kvu", "-fa", "off"), ("-kvu", "-fa", "on")),  # one KV cache for all sequences, as ik_llama.cpp has
    "ik_llama.cpp": (("-fa", "off"), ("-fa", "on"), ("-fa", "on", "-rtr")),
}
_ROW = re.compile(r"^\|\s*\d+ \|\s*\d+ \|\s*(\d+) \|(?:[^|]*\|){4}\s*([\d.]+) \|", re.MULTILINE)  # batch, S_TG


def build(source: Path, folder: Path, jobs: int) -> Path:
    """Build `PROGRAM` from a source tree in `folder`, unless it is there, and return its path."""
    if not (binary := folder.resolve() / "bin" / PROGRAM).is_file():
        run("cmake", "-S", str(source), "-B", str(folder), *CMAKE_OPTIONS, "-DLLAMA_BUILD_EXAMPLES=ON")
        run("cmake", "--build", str(folder), "--parallel", str(jobs), "--target", PROGRAM)
    return binary


def peer_ms(binary: Path, model: Path, threads: int, mode: tuple[str, ...]) -> dict[int, float]:
    """Return the milliseconds of a peer's step by batch width."""
    command = [str(binary), "-m", str(model), "-t", str(threads), "-tb", str(threads), "-pps", *mode]
    command += ["-c", "2048", "-npp", str(CONTEXT), "-ntg", str(STEPS), "-npl", ",".join(map(str, WIDTHS))]
    # ik_llama.cpp writes a log into the current folder.
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=binary.parent)
    rows = _ROW.findall(done.stdout + done.stderr)
    return {int(width): 1e3 * int(width) / float(rate) for width, rate in rows}


def measure(path: Path, binaries: dict[str, Path], threads: int, rounds: int) -> dict[str, Any]:
    """Measure one model file with all programs."""
    best: dict[str, dict[int, float]] = defaultdict(lambda: dict.fromkeys(WIDTHS, float("inf")))
    with closing(ThreadPool(threads, physical_cores())) as pool:
        target = CpuTarget(open_target(path), pool, CONTEXT + max(WIDTHS))
        fill(target.cache)
        for _ in range(rounds):
            for width in WIDTHS:
                target.assume_length(CONTEXT)
                ours = fmean(forward_ms(target, width) for _ in range(STEPS))
                best["localdflash"][width] = min(best["localdflash"][width], ours)
            for peer, binary in binaries.items():
                for mode in MODES[peer]:
                    for width, ms in peer_ms(binary, path, threads, mode).items():
                        best[peer][width] = min(best[peer][width], ms)
    return {"weight_bytes": bytes_per_token(read_header(path)), "ms": {name: _rounded(ms) for name, ms in best.items()}}


def _rounded(times: dict[int, float]) -> dict[int, float]:
    return {width: round(ms, 2) for width, ms in times.items()}


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ik-source", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", default="smollm2-135m,0.6B,1.7B")
    parser.add_argument("--types", default="Q4_K")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    binaries = {
        "llama.cpp": build(llama_source(given.folder), given.folder / "llama", given.jobs),
        "ik_llama.cpp": build(given.ik_source, given.folder / "ik", given.jobs),
    }
    result: dict[str, Any] = {"threads": given.threads, "bandwidth_gb_s": round(bandwidth(), 1), "models": {}}
    with tempfile.TemporaryDirectory() as home:
        found = list(files(Path(home), given.models.split(","), given.types.split(",")))
        os.environ["LOCALDFLASH_HOME"] = home  # packed weights go with it
        for name, path in found:
            result["models"][name] = measured = measure(path, binaries, given.threads, given.rounds)
            print(name, json.dumps(measured), flush=True)
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
