"""The cases of tests/gpu, compiled for chips: `python -m tests.kernels.cuda.aot.gpu_cases 86 120` prints JSON.

The same arguments as on a GPU, in the same sizes, from the same code: a case that cannot be built, launched or compiled
shows here. {capability: {case: [{"kernel", "shared", "spills"}, ...], or why not}}; cases that a chip lacks something
for are left out, as they are skipped there.
"""

import json
import multiprocessing
import os
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

os.environ["LOCALDFLASH_GPU_TESTS"] = "1"  # real sizes

from tests.gpu import gemm_cases, token_cases
from tests.gpu.case import CPU, Case
from tests.kernels.cuda.aot.__main__ import PROCESSES
from tests.kernels.cuda.aot.compiling import compiled_for
from tests.kernels.cuda.aot.sass import Sass, count

CASES = {case.name: case for case in (*gemm_cases.CASES, *token_cases.CASES)}


def compiled(name: str, capability: int) -> list[dict[str, Any]] | str:
    """What the case of that name launches, or the error in a line."""
    warnings.simplefilter("error")  # as tests/bare.ini has it
    try:
        with compiled_for(capability) as kernels:
            CASES[name].op(**CASES[name].build(CPU))
        return [_kernel(kernel) for kernel in kernels]
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"


def _kernel(kernel: Any) -> dict[str, Any]:
    opcodes = count(Sass(kernel.asm["cubin"]).opcodes)
    spills = opcodes["STL"] + opcodes["LDL"]
    return {"kernel": kernel.metadata.name, "shared": kernel.metadata.shared, "spills": spills}


def runs_on(case: Case, capability: int) -> bool:
    """Return whether the chip has what the case needs."""
    return divmod(capability, 10) >= case.needs


def main() -> None:
    """Compile for the chips named and print the JSON."""
    jobs = [(name, chip) for chip in map(int, sys.argv[1:]) for name, case in CASES.items() if runs_on(case, chip)]
    found: dict[int, dict[str, Any]] = {}
    processes = min(PROCESSES, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for (name, chip), facts in zip(jobs, pool.map(compiled, *zip(*jobs, strict=True)), strict=True):
            found.setdefault(chip, {})[name] = facts
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
