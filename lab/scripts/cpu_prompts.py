"""Prefill speed on this CPU: our engine and llama.cpp on the same files.

`PYTHONPATH=. python -P lab/scripts/cpu_prompts.py [--threads 2] [--models 0.6B,1.7B,smollm2-135m] [--types Q8_0,Q4_K]
[--lengths 128,1024,4096] [--json FILE]`. Shapes have random weights. llama.cpp reads as `llama-bench` does, batches of
2048 tokens in passes of 512. The fastest of interleaved repeats counts.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.llamacpp import llama_library
from localdflash.base.machine.cores import physical_cores
from localdflash.lab import result_file
from localdflash.lab.scripts import synthetic
from localdflash.lab.scripts.synthetic import SHAPES
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.weights.ggml_types import GGMLType

BATCH, PASS = 2048, 512
SECONDS, MIN_ROUNDS = 20.0, 2  # minimum duration and rounds

Read = Callable[[int], None]  # reads a prompt of this many tokens


@contextmanager
def ours(path: Path, context: int, threads: int) -> Iterator[Read]:
    """Yield a function that reads a prompt with our engine."""
    with closing(ThreadPool(threads, physical_cores())) as pool:
        target = CpuTarget(open_target(path), pool, context)

        def read(length: int) -> None:
            target.crop(0)
            for begin in range(0, length, target.max_width):
                target.extend([1] * min(target.max_width, length - begin))

        yield read


@contextmanager
def theirs(path: Path, context: int, threads: int) -> Iterator[Read]:
    """Yield a function that reads a prompt with llama.cpp, unmodified."""
    model = llama_library.load_model(path)
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = context, BATCH, PASS
    params.n_threads = params.n_threads_batch = threads
    handle = llama_library.new_context(model, params)
    batch = api.llama_batch_init(BATCH, 0, 1)

    def read(length: int) -> None:
        api.llama_memory_clear(api.llama_get_memory(handle), True)
        for begin in range(0, length, BATCH):
            batch.n_tokens = min(BATCH, length - begin)
            for i in range(batch.n_tokens):
                batch.token[i], batch.pos[i] = 1, begin + i
                batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, False
            if status := api.llama_decode(handle, batch):
                raise RuntimeError(f"llama.cpp failed to read a prompt (status {status})")

    try:
        yield read
    finally:
        api.llama_batch_free(batch)
        api.llama_free(handle)
        api.llama_model_free(model)


def measure(path: Path, lengths: list[int], threads: int, seconds: float, min_rounds: int) -> dict[str, Any]:
    """Return the tokens per second of both by prompt length, and the ratio."""
    result: dict[str, Any] = {}
    with ours(path, max(lengths) + 64, threads) as mine, theirs(path, max(lengths) + 64, threads) as their:
        for length in lengths:
            best, began, rounds = {"cpu": float("inf"), "llama.cpp": float("inf")}, time.perf_counter(), 0
            while rounds < min_rounds or time.perf_counter() - began < seconds:
                for name, read in (("cpu", mine), ("llama.cpp", their)):
                    once = time.perf_counter()
                    read(length)
                    best[name] = min(best[name], time.perf_counter() - once)
                rounds += 1
            rates = {name: round(length / seconds_taken, 1) for name, seconds_taken in best.items()}
            result[str(length)] = rates | {"ratio": round(best["llama.cpp"] / best["cpu"], 3), "rounds": rounds}
            print(path.name, length, json.dumps(result[str(length)]), flush=True)
    return result


def files(folder: Path, models: list[str], kinds: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files to measure by name; write random models if needed."""
    for name in models:
        if name not in SHAPES:
            yield name, local_files(load_registry().resolve(name)).target
            continue
        for kind in kinds:
            path = folder / f"{name}-{kind}.gguf"
            if not path.exists():
                synthetic.write_target(path, SHAPES[name], f"random {name}", GGMLType[kind])
            yield f"{name} {kind}", path


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", default="0.6B,1.7B,smollm2-135m")
    parser.add_argument("--types", default="Q8_0,Q4_K")
    parser.add_argument("--lengths", default="128,1024,4096")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help="minimum number of rounds")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    lengths = [int(length) for length in given.lengths.split(",")]
    result: dict[str, Any] = {"threads": given.threads, "models": {}}
    with tempfile.TemporaryDirectory() as home:
        found = list(files(given.folder or Path(home), given.models.split(","), given.types.split(",")))
        os.environ["LOCALDFLASH_HOME"] = home  # packed weights go with it
        for name, path in found:
            result["models"][name] = measure(path, lengths, given.threads, given.seconds, given.rounds)
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
