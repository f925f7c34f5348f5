"""Compile every case for every chip and print what came out: {case: {capability: [facts of each kernel]}}.

With arguments, only the cases whose name contains one of them.
"""

import contextlib
import io
import json
import multiprocessing
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.kernels.aot.cases import CASES, Case
from tests.kernels.aot.compiling import compiled_for
from tests.kernels.aot.ptx import mma_mnemonics, ticket_is_fenced, touched_before_wait
from tests.kernels.aot.sass import Sass, count, multiply_adds

PROCESSES = 4
_REASON = re.compile(r"type \w+ not supported|Instruction '\w+' requires [^\n]*")


def facts(case: Case, capability: int) -> list[dict[str, Any]] | str:
    """What is worth knowing about each kernel of a case; if it does not compile, why."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), compiled_for(capability) as kernels:  # Triton prints refused PTX
            case.launch()
    except Exception as error:
        reason = _REASON.search(str(error))
        return f"refused: {reason.group()}" if reason else f"{type(error).__name__}: {error}"[-600:]
    return [_kernel_facts(case, kernel) for kernel in kernels]


def _kernel_facts(case: Case, kernel: Any) -> dict[str, Any]:
    ptx, sass, warps = kernel.asm["ptx"], Sass(kernel.asm["cubin"]), kernel.metadata.num_warps
    constants = {kernel.src.fn.arg_names[path[0]]: value for path, value in kernel.src.constants.items()}
    arguments = [name for name, kind in kernel.src.signature.items() if kind != "constexpr"]
    whole = count(sass.opcodes)
    touched = touched_before_wait(ptx)
    result = {
        "kernel": kernel.metadata.name,
        "shared": kernel.metadata.shared,
        "spills": whole["STL"] + whole["LDL"],
        "ticket_fenced": ticket_is_fenced(ptx),
        "pdl": constants.get("PDL"),
        "releases": "griddepcontrol.launch_dependents" in ptx,
        "before_wait": None if touched is None else sorted(arguments[position] for position in touched),
        "mma": mma_mnemonics(ptx),
    }
    if not result["mma"]:
        return result
    loop = sass.main_loop()
    opcodes = count(loop)
    streamed, volume = case.tile(constants)
    return result | {
        "loop": len(loop),
        "per_4k": len(loop) * warps * 4096 / streamed,
        "tiles": multiply_adds(loop) * warps / volume,
        "blocking": opcodes["LDG"],
        "asynchronous": opcodes["LDGSTS"] + opcodes["UTMALDG"],
        "conversions": opcodes["I2F"] + opcodes["I2FP"],
    }


def _job(name: str, capability: int) -> list[dict[str, Any]] | str:
    return facts(next(case for case in CASES if case.name == name), capability)


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
        for (name, capability), found in zip(jobs, pool.map(_job, *zip(*jobs, strict=True)), strict=True):
            results.setdefault(name, {})[capability] = found
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
