"""The C++ sources of the CPU engine, each with the instruction sets that it is compiled for, and how to compile them.

Nothing is imported but the standard library: setup.py runs this before the package exists.
"""

import platform
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
# No contraction: what is fused is written as fused, so that every instruction set gives the same bits.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"),
)
COMMON: dict[str, Sequence[str]] = {"api.cpp": (), "cpus.cpp": (), "threads.cpp": (), "isa_portable.cpp": ()}
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
X86: dict[str, Sequence[str]] = {
    "isa_avx2.cpp": AVX2,
    "isa_avxvnni.cpp": (*AVX2, "-mavxvnni"),
    "isa_avx512vnni.cpp": AVX512,
    "isa_amx.cpp": (*AVX512, "-mamx-tile", "-mamx-int8"),
}
ARM: dict[str, Sequence[str]] = {"isa_neon.cpp": ("-march=armv8.2-a+dotprod",)}


def sources(machine: str = "") -> dict[str, Sequence[str]]:
    """File names and their own flags for a kind of machine (this one)."""
    name = (machine or platform.machine()).lower()
    own = X86 if name in ("x86_64", "amd64") else ARM if name in ("aarch64", "arm64") else {}
    return {**COMMON, **own}


def compile_library(
    target: Path, compiler: Sequence[str] = ("c++",), extra: Sequence[str] = (), machine: str = ""
) -> None:
    """Compile and link a shared library; CalledProcessError or OSError if that fails. `extra` goes everywhere."""
    objects = target.parent / f"{target.stem}.objects"
    objects.mkdir(parents=True, exist_ok=True)

    def compile_one(item: tuple[str, Sequence[str]]) -> str:
        name, own = item
        place = str(objects / f"{Path(name).stem}.o")
        run([*compiler, *FLAGS, *extra, *own, "-c", str(FOLDER / name), "-o", place])
        return place

    with ThreadPoolExecutor() as pool:
        compiled = list(pool.map(compile_one, sources(machine).items()))
    run([*compiler, *extra, "-shared", *compiled, "-o", str(target), "-pthread"])


def run(command: Sequence[str]) -> None:
    """Run the compiler; what it says goes into the error."""
    subprocess.run(command, check=True, capture_output=True, text=True)
