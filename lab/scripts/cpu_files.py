"""Verify steps and decoding of several GGUF files of one model on this CPU, next to llama.cpp.

`PYTHONPATH=. python -P lab/scripts/cpu_files.py FILE... [--threads 2] [--seconds 40] [--json FILE]`, for example the
same weights in two types. Numbers are medians of interleaved rounds.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.engine.draft import Draft
from localdflash.engine.pair import Target
from localdflash.lab import result_file
from localdflash.lab.bench.lone_row_target import LoneRowTarget
from localdflash.lab.scripts.cpu_shapes import forward_ms

WIDTHS = (1, 2, 4, 8, 16)
CONTEXT, CACHED, DECODED = 512, 128, 48  # tokens that the cache holds, that lie in it, that are decoded after them
PAUSE = 0.5  # seconds, for which llama.cpp's threads go on spinning
EMPTY_DRAFT = Draft("none", [], [])

Targets = dict[str, tuple[CpuTarget, Target]]  # ours and llama.cpp's, by file
Times = dict[str, dict[str, list[float]]]  # of each file, what was measured in every round


def decode_ms(target: Target) -> float:
    """Milliseconds of a greedily decoded token."""
    target.crop(CACHED)
    token, began = 1, time.perf_counter()
    for _ in range(DECODED):
        token = int(target.verify(token, EMPTY_DRAFT).logits[0].argmax())
        target.keep(1)
    return (time.perf_counter() - began) * 1e3 / DECODED


def one_round(targets: Targets, times: Times) -> None:
    """Every file in turn, width by width."""
    for name, (ours, _) in targets.items():
        times[name]["plain"].append(decode_ms(ours))
    for rows in WIDTHS:
        for name, (ours, _) in targets.items():
            ours.crop(CACHED)
            times[name][f"verify of {rows}"].append(forward_ms(ours, rows))
    for name, (_, theirs) in targets.items():
        times[name]["llama.cpp plain"].append(decode_ms(theirs))
    time.sleep(PAUSE)


def report(times: Times) -> dict[str, Any]:
    """Return medians: milliseconds of a verify step by width, and tokens per second without drafting."""
    result: dict[str, Any] = {}
    for name, measured in times.items():
        ms = {rows: median(measured[f"verify of {rows}"]) for rows in WIDTHS}
        result[name] = {
            "rounds": len(measured["plain"]),
            "verify_ms": {rows: round(time_ms, 3) for rows, time_ms in ms.items()},
            "v": {rows: round(time_ms / ms[1], 2) for rows, time_ms in ms.items()},
            "plain_tokens_s": round(1e3 / median(measured["plain"]), 1),
            "llama_cpp_plain_tokens_s": round(1e3 / median(measured["llama.cpp plain"]), 1),
        }
    return result


def measure(files: Sequence[Path], threads: int, seconds: float) -> dict[str, Any]:
    """See the module."""
    targets: Targets = {}
    times: Times = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        team = stack.enter_context(closing(ThreadPool(threads, ())))
        for file in files:
            ours = stack.enter_context(closing(CpuTarget(open_target(file), team, CONTEXT)))
            theirs = stack.enter_context(closing(LoneRowTarget(file, CONTEXT, threads)))
            for target in (ours, theirs):
                for _ in range(CACHED // 32):
                    target.extend([1] * 32)
            targets[file.name] = ours, theirs
        one_round(targets, defaultdict(lambda: defaultdict(list)))  # warms up
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            one_round(targets, times)
        return {"instruction_set": team.instruction_set, "files": report(times)}


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result = {"threads": given.threads} | measure(given.files, given.threads, given.seconds)
    print(json.dumps(result, indent=2))
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
