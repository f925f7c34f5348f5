"""What is worth knowing about the kernels of a case: plain numbers, ready for JSON."""

import contextlib
import io
import re
from typing import Any

from tests.kernels.cuda.aot.case import Case
from tests.kernels.cuda.aot.cases import CASES
from tests.kernels.cuda.aot.compiling import compiled_for
from tests.kernels.cuda.aot.ptx import mma_mnemonics, ticket_is_fenced, touched_before_wait
from tests.kernels.cuda.aot.sass import Sass, count, multiply_adds

_REFUSAL = re.compile(r"type \w+ not supported|Instruction '\w+' requires [^\n]*")


def facts(name: str, capability: int) -> list[dict[str, Any]] | str:
    """About each kernel of the case of that name; if it does not compile, why."""
    case = next(case for case in CASES if case.name == name)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            compiled_for(capability) as kernels,
        ):  # Triton prints refused PTX
            case.launch()
    except Exception as error:
        return _reason(error)
    return [_kernel_facts(case, kernel) for kernel in kernels]


def _reason(error: BaseException) -> str:
    """The innermost error of a chain, in one line."""
    if refusal := _REFUSAL.search(str(error)):
        return f"refused: {refusal.group()}"
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error)[-300:]}"


def _kernel_facts(case: Case, kernel: Any) -> dict[str, Any]:
    ptx, sass, warps = kernel.asm["ptx"], Sass(kernel.asm["cubin"]), kernel.metadata.num_warps
    constants = {kernel.src.fn.arg_names[path[0]]: value for path, value in kernel.src.constants.items()}
    arguments = [(name, kind) for name, kind in kernel.src.signature.items() if kind != "constexpr"]
    whole = count(sass.opcodes)
    touched = touched_before_wait(ptx)
    early = [arguments[position] for position in sorted(touched or ())]
    result = {
        "kernel": kernel.metadata.name,
        "shared": kernel.metadata.shared,
        "spills": whole["STL"] + whole["LDL"],
        "ticket_fenced": ticket_is_fenced(ptx),
        "pdl": constants.get("PDL"),
        "releases": "griddepcontrol.launch_dependents" in ptx,
        "before_wait": None if touched is None else [name for name, kind in early if kind.startswith("*")],
        "mma": mma_mnemonics(ptx),
        "fused": whole["FFMA"] + 2 * whole["FFMA2"],  # products with sums, single ones and pairs
    }
    if not result["mma"]:
        return result
    streamed, volume = case.tile(constants)
    loop = sass.main_loop(volume // warps)
    opcodes = count(loop)
    tiles = multiply_adds(loop) * warps // volume
    return result | {
        "loop": len(loop),
        "tiles": tiles,
        "per_4k": len(loop) * warps * 4096 / (streamed * max(1, tiles)),
        "blocking": opcodes["LDG"],
        "spilled": opcodes["STL"] + opcodes["LDL"],
        "asynchronous": opcodes["LDGSTS"] + opcodes["UTMALDG"],
        "conversions": opcodes["I2F"] + opcodes["I2FP"],
    }
