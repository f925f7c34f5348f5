"""Reading machine code (SASS), disassembled by the nvdisasm that comes with Triton."""

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import triton.backends.nvidia

_NVDISASM = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Za-z0-9_]*)([\w.]*)(.*?);")
_UNIFORM = re.compile(r"(g?desc\[)?\bUR(\d+)")
_LABEL, _JUMP, _SPILL = re.compile(r"(\.L_\w+):"), re.compile(r"\bBRA\b.*`\((\.L_\w+)\)"), re.compile(r"\b(STL|LDL)\b")


def disassembled(cubin: bytes) -> str:
    """Return the listing of a kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([str(_NVDISASM), "-c", file.name], capture_output=True, text=True, check=True).stdout


def count(listing: str) -> Counter[str]:
    """Count a kernel's instructions by opcode, suffixes dropped."""
    return Counter(opcode for opcode, _, _ in _INSTRUCTION.findall(listing))


def loops(listing: str) -> list[str]:
    """Return the listing of each loop: from a label to a jump back to it."""
    lines, labels, found = listing.splitlines(), dict[str, int](), list[str]()
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = number
        elif (jump := _JUMP.search(line)) and jump[1] in labels:
            found.append("\n".join(lines[labels[jump[1]] : number + 1]))
    return found


def spills(listing: str) -> int:
    """Count the spills and reloads of registers."""
    return len(_SPILL.findall(listing))


def undefined_uniform_registers(listing: str) -> list[str]:
    """Return the instructions that read a uniform register which no earlier one writes.

    ptxas 12.8 emits such code for some kernels with wgmma, whose matrices are then read from anywhere.
    """
    written, found = set[int](), list[str]()
    for opcode, suffixes, text in _INSTRUCTION.findall(listing):
        operands, target = text.split(","), set[int]()
        if re.fullmatch(r"\s*UR\d+", operands[0]):  # no instruction of ours begins with one that it reads
            first = int(operands.pop(0).strip()[2:])
            width = 4 if ".128" in suffixes else 2 if ".64" in suffixes or ".WIDE" in suffixes else 1
            target = set(range(first, first + width))
        read = set[int]()
        for kind, number in _UNIFORM.findall(",".join(operands)):
            first = int(number)
            if kind == "gdesc[":  # two descriptors, of which the first is unused if that matrix is in registers
                in_registers = re.match(r"\s*R\d+", operands[1]) is not None
                read |= set(range(first + 2 * in_registers, first + 4))
            else:
                pair = ".64" in suffixes and opcode.startswith("U") and opcode != "ULDC"
                read |= {first, first + pair}
        if read - written:
            found.append(f"{opcode}{suffixes}{text}".strip())
        written |= target
    return found
