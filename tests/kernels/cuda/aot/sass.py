"""Reading machine code (SASS), disassembled by the nvdisasm that comes with Triton."""

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import triton.backends.nvidia

_NVDISASM = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Za-z0-9_]*).*;")


def count(cubin: bytes) -> Counter[str]:
    """Count a kernel's instructions by opcode, suffixes dropped."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run([str(_NVDISASM), "-c", file.name], capture_output=True, text=True, check=True).stdout
    return Counter(_OPCODE.findall(listing))
