"""Reading machine code (SASS), disassembled by the nvdisasm that comes with Triton."""

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import triton.backends.nvidia

_NVDISASM = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_LABEL = re.compile(r"\s*(\.L_x_\w+):")
_BRANCH = re.compile(r"BRA.*`\((\.L_x_\w+)\)")
_OPCODE = re.compile(r"(?:@!?\w+\s+)?([A-Z][A-Za-z0-9_.]*)")
_MMA = re.compile(r"(?:HMMA|IMMA|QMMA|OMMA)\S*?\.(16)(8)(\d+)")
_WARPGROUP_MMA = re.compile(r"(?:HGMMA|IGMMA|QGMMA)\.(\d+)x(\d+)x(\d+)")


class Sass:
    """The opcodes of a kernel with their suffixes, in order, and its loops."""

    def __init__(self, cubin: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [str(_NVDISASM), "-c", file.name]
            listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.opcodes: list[str] = []
        self._loops: list[tuple[int, int]] = []  # first and last instruction
        labels: dict[str, int] = {}
        for line in listing.splitlines():
            if label := _LABEL.match(line):
                labels[label.group(1)] = len(self.opcodes)
            elif instruction := _INSTRUCTION.search(line):
                text = instruction.group(1)
                branch = _BRANCH.search(text)
                if branch and branch.group(1) in labels:
                    self._loops.append((labels[branch.group(1)], len(self.opcodes)))
                opcode = _OPCODE.match(text)
                self.opcodes.append(opcode.group(1) if opcode else "")

    def main_loop(self, tile: int) -> list[str]:
        """The loop over tiles: of those that do a whole number of `tile` multiply-adds a warp, the one that does most.

        The innermost of equals. Minimums have a loop of their own, whose sums are of another shape.
        """
        bodies = [self.opcodes[first : last + 1] for first, last in self._loops]
        of_tiles = [body for body in bodies if multiply_adds(body) and multiply_adds(body) % tile == 0]
        return max(of_tiles, key=lambda body: (multiply_adds(body), -len(body)), default=[])


def count(opcodes: list[str]) -> Counter[str]:
    """How often each opcode occurs, suffixes dropped."""
    return Counter(opcode.split(".")[0] for opcode in opcodes)


def multiply_adds(opcodes: list[str]) -> int:
    """Multiply-adds on the tensor cores that one warp's share of these instructions does."""
    volume = 0
    for opcode in opcodes:
        if match := _MMA.search(opcode):
            m, n, k = map(int, match.groups())
            volume += m * n * k
        elif match := _WARPGROUP_MMA.search(opcode):  # shared by four warps
            m, n, k = map(int, match.groups())
            volume += m * n * k // 4
    return volume
