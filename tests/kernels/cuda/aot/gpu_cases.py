"""The cases of tests/gpu, compiled for chips: `python -m tests.kernels.cuda.aot.gpu_cases 86 120` prints JSON.

Arguments and sizes are those on a GPU: a case that cannot be built, launched or compiled is detected here.
{capability: {case: [facts of each kernel], or the error}}; cases that a chip does not support are omitted.
"""

import json
import os
import sys
import warnings
from typing import Any

os.environ["LOCALDFLASH_GPU_TESTS"] = "1"  # real sizes

from tests.gpu import gemm_cases, token_cases
from tests.gpu.case import CPU
from tests.kernels.cuda.aot.compiling import compile_all, compiled_for, facts

CASES = {case.name: case for case in (*gemm_cases.CASES, *token_cases.CASES)}


def compiled(name: str, capability: int) -> list[dict[str, Any]] | str:
    """Return the launches of the named case, or the error in one line."""
    warnings.simplefilter("error")  # as tests/bare.ini has it
    try:
        with compiled_for(capability) as kernels:
            CASES[name].op(**CASES[name].build(CPU))
        return [facts(kernel) for kernel in kernels]
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"


def main() -> None:
    """Compile for the named chips and print the JSON."""
    chips = map(int, sys.argv[1:])
    jobs = [(name, chip) for chip in chips for name, case in CASES.items() if divmod(chip, 10) >= case.needs]
    found: dict[int, dict[str, Any]] = {}
    for (name, chip), launched in zip(jobs, compile_all(compiled, jobs), strict=True):
        found.setdefault(chip, {})[name] = launched
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
