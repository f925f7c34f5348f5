"""Cost of a step on the CPU engine by context length, with the KV cache in each format.

`PYTHONPATH=. python -P lab/scripts/cpu_context.py [--threads 2] [--models smollm2-135m,0.6B] [--lengths 64,2048,8100]
[--rows 1,8] [--json FILE]`. Shapes have random weights in Q8_0, others are pairs of the registry. The fastest of
interleaved repeats counts. `share` is the part of a step's time beyond that of the shortest context: attention.
"""

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_kv_cache import CPU_KV_FORMATS, KVCache
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.base.machine.cores import physical_cores
from localdflash.base.machine.hardware import bandwidth
from localdflash.lab import result_file
from localdflash.lab.scripts.cpu_prompts import files
from localdflash.lab.scripts.cpu_shapes import forward_ms
from localdflash.loading.plan.here import bytes_per_token
from localdflash.models.weights.gguf import read_header

SECONDS, MIN_ROUNDS = 20.0, 3  # minimum duration and rounds


def fill(cache: KVCache) -> None:
    """Fill a KV cache with values of a realistic size."""
    random = np.random.default_rng(0)
    for array in cache.arrays:
        row = array.shape[2:]
        is_float = np.issubdtype(array.dtype, np.floating)
        values = random.random(row) / 64 if is_float else random.integers(-127, 128, row)
        array[...] = values.astype(array.dtype)


def measure(path: Path, lengths: list[int], widths: list[int], threads: int, seconds: float) -> dict[str, Any]:
    """Return milliseconds by KV format, batch width and context length."""
    with ExitStack() as stack:
        pool = ThreadPool(threads, physical_cores())
        stack.callback(pool.close)
        packed = open_target(path)
        targets = {kv: CpuTarget(packed, pool, max(lengths) + max(widths), kv=kv) for kv in CPU_KV_FORMATS}
        for target in targets.values():
            fill(target.cache)
        cases = [(kv, rows, length) for length in lengths for rows in widths for kv in targets]
        best, began, rounds = dict.fromkeys(cases, float("inf")), time.perf_counter(), 0
        while rounds < MIN_ROUNDS or time.perf_counter() - began < seconds:
            for kv, rows, length in cases:
                targets[kv].assume_length(length)
                best[kv, rows, length] = min(best[kv, rows, length], forward_ms(targets[kv], rows))
            rounds += 1
        sizes = {kv: round(target.cache.nbytes / target.cache.capacity) for kv, target in targets.items()}
    result: dict[str, Any] = {"weight_bytes": bytes_per_token(read_header(path)), "bytes_a_token": sizes}
    for kv in targets:
        for rows in widths:
            times = [best[kv, rows, length] for length in lengths]
            result[f"{kv}, {rows} rows"] = {
                "ms": {length: round(ms, 2) for length, ms in zip(lengths, times, strict=True)},
                "share": {length: round(1 - times[0] / ms, 3) for length, ms in zip(lengths, times, strict=True)},
            }
    return result


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", default="smollm2-135m,0.6B")
    parser.add_argument("--lengths", default="64,2048,8100")
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    lengths, widths = ([int(number) for number in text.split(",")] for text in (given.lengths, given.rows))
    result: dict[str, Any] = {"threads": given.threads, "bandwidth_gb_s": round(bandwidth(), 1), "models": {}}
    with tempfile.TemporaryDirectory() as home:
        found = list(files(Path(home), given.models.split(","), ["Q8_0"]))
        os.environ["LOCALDFLASH_HOME"] = home  # packed weights go with it
        for name, path in found:
            result["models"][name] = measured = measure(path, lengths, widths, given.threads, given.seconds)
            print(name, json.dumps(measured), flush=True)
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
