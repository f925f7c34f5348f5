"""Compile every case for every chip and print what came out: {case: {capability: [facts of each kernel]}}.

With arguments, only the cases whose name contains one of them.
"""

import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.kernels.aot.cases import CASES
from tests.kernels.aot.facts import facts

PROCESSES = 4


def main() -> None:
    """Compile in a few processes and print the JSON."""
    jobs = [
        (case.name, capability)
        for case in CASES
        for capability in case.capabilities
        if not sys.argv[1:] or any(part in case.name for part in sys.argv[1:])
    ]
    processes = min(PROCESSES, len(os.sched_getaffinity(0)))
    results: dict[str, dict[int, Any]] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for (name, capability), found in zip(jobs, pool.map(facts, *zip(*jobs, strict=True)), strict=True):
            results.setdefault(name, {})[capability] = found
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
