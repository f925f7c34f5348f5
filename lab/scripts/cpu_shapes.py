"""Cost of a verify step by batch width on this CPU: our engine and llama.cpp on random models of real shapes.

`PYTHONPATH=. python -P lab/scripts/cpu_shapes.py [--threads 2] [--shapes 0.6B,1.7B] [--types Q8_0,Q4_0] [--drafters
Q8_0] [--json FILE]`. The fastest of interleaved repeats counts. V(M) is the time of a verify batch of M tokens
divided by the time of a single token on the same engine. Drafters have five layers, blocks of 16 tokens, and the whole
or a short vocabulary. Needs memory for twice the model.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.cpu_drafter import CpuDFlashDrafter
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH, ONE_PATH, DecodeMode
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.base.machine.cores import physical_cores
from localdflash.base.machine.hardware import bandwidth
from localdflash.engine.calibrate import spread_ids
from localdflash.engine.draft import Draft
from localdflash.engine.pair import Target, TargetFeatures
from localdflash.lab import result_file
from localdflash.lab.scripts import synthetic
from localdflash.lab.scripts.synthetic import SHAPES
from localdflash.models.weights.ggml_types import GGMLType

WIDTHS = (1, 2, 4, 8, 16, 32)
CONTEXT, CACHED = 512, 64  # capacity of the KV cache, and cached tokens
SHORT, ACCEPTED = 16_384, 4  # tokens of the short vocabulary, and committed tokens per step
TOKEN = 1  # id of every token of the text
SECONDS = 20.0  # minimum duration of the repeats
EXACT = DecodeMode(ONE_PATH, tuple(range(1, MAX_WIDTH + 1)))  # as llama.cpp runs most files with `--rows exact`


def forward_ms(target: Target, rows: int) -> float:
    """Return the time of a verify batch of `rows` tokens, none committed; a first run warms the CPU's caches."""
    last_committed, *draft_tokens = spread_ids(target.vocab_size, rows)
    draft = Draft(drafter="none", tokens=draft_tokens, confidence=[1.0] * len(draft_tokens))
    for _ in range(2):
        began = time.perf_counter()
        target.verify(last_committed, draft)
        target.keep(0)
    return (time.perf_counter() - began) * 1e3


def draft_ms(drafter: CpuDFlashDrafter, features: TargetFeatures) -> float:
    """Return the time of a draft after a step of ACCEPTED tokens."""
    drafter.rollback(CACHED)
    drafter.observe([TOKEN] * ACCEPTED, features[:ACCEPTED])
    began = time.perf_counter()
    drafter.propose(TOKEN, drafter.max_draft_tokens)
    return (time.perf_counter() - began) * 1e3


def measure(
    targets: dict[str, Target], drafters: dict[str, CpuDFlashDrafter], seconds: float
) -> tuple[dict[str, dict[int, float]], dict[str, float]]:
    """Return the milliseconds of each engine and width, and of each drafter, the fastest of interleaved repeats."""
    drafter_features: TargetFeatures = np.empty((0, 0), np.float32)  # of any ACCEPTED tokens or more
    for target in targets.values():
        for _ in range(2):  # a batch holds at most `target.max_width` tokens
            features = target.extend([TOKEN] * (CACHED // 2))
            if features is None:  # llama.cpp runs without a drafter here
                continue
            drafter_features = features
            for drafter in drafters.values():
                drafter.observe([TOKEN] * len(features), features)
    best = {name: dict.fromkeys(WIDTHS, float("inf")) for name in targets}
    drafts = dict.fromkeys(drafters, float("inf"))
    began, rounds = time.perf_counter(), 0
    while rounds < 2 or time.perf_counter() - began < seconds:
        for rows in WIDTHS:
            for name, target in targets.items():
                best[name][rows] = min(best[name][rows], forward_ms(target, rows))
        for name, drafter in drafters.items():
            drafts[name] = min(drafts[name], draft_ms(drafter, drafter_features))
        rounds += 1
    return best, drafts


def report(ms: dict[str, dict[int, float]], drafts: dict[str, float]) -> dict[str, Any]:
    """Return times, V by width, speeds relative to llama.cpp, and V of a draft and a verify batch of 8 tokens."""
    result: dict[str, Any] = {
        name: {
            "ms": {rows: round(time_ms, 3) for rows, time_ms in times.items()},
            "v": {rows: round(time_ms / times[1], 2) for rows, time_ms in times.items()},
        }
        for name, times in ms.items()
    }
    result["speed_over_llama_cpp"] = round(ms["llama.cpp"][1] / ms["cpu"][1], 3)
    result["drafts"] = {
        name: {"ms": round(taken, 3), "draft_and_v8": round((taken + ms["cpu"][8]) / ms["cpu"][1], 2)}
        for name, taken in drafts.items()
    }
    result["speed_of_16_over_llama_cpp"] = round(ms["llama.cpp"][16] / ms["cpu"][16], 3)
    return result


def run(folder: Path, shape: str, kind: str, drafters: Sequence[str], threads: int, seconds: float) -> dict[str, Any]:
    """Measure one model on both engines, with drafters of these types."""
    path, config = folder / f"{shape}-{kind}.gguf", SHAPES[shape]
    if not path.exists():
        synthetic.write_target(path, config, f"random {shape}", GGMLType[kind])
    with ExitStack() as stack:
        pool = ThreadPool(threads, physical_cores())
        stack.callback(pool.close)
        ours = CpuTarget(open_target(path), pool, CONTEXT, synthetic.TAPS[config])
        theirs = stack.enter_context(closing(LlamaCppTarget(path, CONTEXT, threads, mode=EXACT)))
        made = {
            f"{drafter_kind}{f', {short} tokens' if short else ''}": _drafter(folder, shape, drafter_kind, short, ours)
            for drafter_kind in drafters
            for short in (0, SHORT)
        }
        return report(*measure({"cpu": ours, "llama.cpp": theirs}, made, seconds))


def _drafter(folder: Path, shape: str, kind: str, short: int, target: CpuTarget) -> CpuDFlashDrafter:
    path = folder / f"{shape}-drafter-{kind}-{short}.gguf"
    if not path.exists():
        config = synthetic.published_drafter(SHAPES[shape], short)
        synthetic.write_drafter(path, config, GGMLType[kind], f"random drafter of {shape}")
    return CpuDFlashDrafter(open_drafter(path), target)


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", default="0.6B,1.7B")
    parser.add_argument("--types", default="Q8_0,Q4_0")
    parser.add_argument("--drafters", default="Q8_0,Q4_0")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    shapes, kinds = given.shapes.split(","), given.types.split(",")
    result: dict[str, Any] = {"threads": given.threads, "bandwidth_gb_s": round(bandwidth(), 1), "models": {}}
    with tempfile.TemporaryDirectory() as home:
        os.environ["LOCALDFLASH_HOME"] = home  # so that the cache of packed weights is deleted with the folder
        folder = given.folder or Path(home)
        for shape in shapes:
            for kind in kinds:
                found = run(folder, shape, kind, given.drafters.split(","), given.threads, given.seconds)
                result["models"][f"{shape} {kind}"] = found
                print(shape, kind, json.dumps(found), flush=True)
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
