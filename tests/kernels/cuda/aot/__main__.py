"""Compile every case for every chip and print what came out: {case: {capability: [facts of each kernel]}}.

With arguments: numbers are the only chips, and of the cases only those are compiled whose name contains a word.
"""

import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.kernels.cuda.aot.cases import CASES
from tests.kernels.cuda.aot.facts import facts

PROCESSES = 4


def main() -> None:
    """Compile in a few processes and print the JSON."""
    chips = {int(word) for word in sys.argv[1:] if word.isdigit()}
    parts = [word for word in sys.argv[1:] if not word.isdigit()]
    jobs = [
        (case.name, capability)
        for case in CASES
        for capability in case.capabilities
        if (not chips or capability in chips) and (not parts or any(part in case.name for part in parts))
    ]
    processes = min(PROCESSES, len(os.sched_getaffinity(0)))
    results: dict[str, dict[int, Any]] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for (name, capability), found in zip(jobs, pool.map(facts, *zip(*jobs, strict=True)), strict=True):
            results.setdefault(name, {})[capability] = found
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
