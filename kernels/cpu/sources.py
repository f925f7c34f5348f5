"""Compile the C++ sources of the CPU engine for several instruction sets.

This file imports only the standard library, because setup.py runs it before the package is installed.
"""

import os
import platform
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
# No contraction: fused operations are explicit in the source, so that every instruction set gives the same bits.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"),
)
COMMON = ("api.cpp", "cpus.cpp", "faults.cpp", "threads.cpp")
PORTABLE: dict[str, Sequence[str]] = {"isa_portable.cpp": ()}
AVX2 = ("-mavx2", "-mfma", "-mf16c")
X86: dict[str, Sequence[str]] = {  # best first
    "isa_avx512vnni.cpp": (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
    "isa_avxvnni.cpp": (*AVX2, "-mavxvnni"),
    "isa_avx2.cpp": AVX2,
}
# Linux only: a wheel must also run where libstdc++ is missing, or older than on the build machine.
STATIC = ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL")
ARM: dict[str, Sequence[str]] = {"isa_neon.cpp": ("-march=armv8.2-a+dotprod",)}


def instruction_sets(machine: str = "") -> dict[str, Sequence[str]]:
    """Return the source files of an architecture (default: this machine's) and their compiler flags, best first."""
    name = (machine or platform.machine()).lower()
    specific = X86 if name in ("x86_64", "amd64") else ARM if name in ("aarch64", "arm64") else {}
    return {**specific, **PORTABLE}


def compile_library(
    target: Path,
    compiler: Sequence[str] = ("c++",),
    extra: Sequence[str] = (),
    machine: str = "",
    native: bool = False,
    static: bool = False,
) -> Sequence[str]:
    """Compile and link a shared library; return the instruction sets whose flags the compiler does not support.

    `extra` are flags of every command. `native` compiles only this processor's best instruction set and the portable
    one, if the system reports its features. `static` links the compiler's libraries statically if possible. Raise
    CalledProcessError or OSError on failure.
    """
    objects = target.parent / f"{target.stem}.objects"
    objects.mkdir(parents=True, exist_ok=True)
    sets = _sets_of_this_processor() if native else instruction_sets(machine)
    supported = {name: flags for name, flags in sets.items() if not flags or _accepts_flags(compiler, flags)}
    tables = ",".join(f"&ldf::{_name(file)}_kernels" for file in supported)

    def compile_one(item: tuple[str, Sequence[str]]) -> str:
        name, file_flags = item
        object_file = str(objects / f"{Path(name).stem}.o")
        if native and name in PORTABLE:
            file_flags = ("-O2",)  # three times faster to compile; used only if the library moves to another machine
        run([*compiler, *FLAGS, *extra, *file_flags, "-c", str(FOLDER / name), "-o", object_file])
        return object_file

    with ThreadPoolExecutor() as pool:
        common = dict.fromkeys(COMMON, (f"-DLDF_TABLES={tables}",))
        compiled = list(pool.map(compile_one, [*supported.items(), *common.items()]))
    _link([*compiler, *extra, "-shared", *compiled, "-o", str(target), "-pthread"], static)
    return [_name(file) for file in sets if file not in supported]


def _link(command: Sequence[str], static: bool) -> None:
    if static:
        try:
            run([*command, *STATIC])
            return
        except subprocess.CalledProcessError:  # no libstdc++.a
            pass
    run(command)


def _sets_of_this_processor() -> dict[str, Sequence[str]]:
    """Return this processor's best instruction set and the portable one; all if Linux does not list its features."""
    sets = instruction_sets()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return sets
    features = next((line.split(":")[1] for line in lines if line.startswith("flags")), "").replace("_", "").split()
    best = next(name for name, flags in sets.items() if {flag[2:].replace("-", "") for flag in flags} <= set(features))
    return {name: flags for name, flags in sets.items() if not features or name in (best, *PORTABLE)}


def _accepts_flags(compiler: Sequence[str], flags: Sequence[str]) -> bool:
    """Return whether a compiler accepts these flags; OSError if it cannot be run."""
    command = [*compiler, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _name(file: str) -> str:
    return Path(file).stem.removeprefix("isa_")


def run(command: Sequence[str]) -> None:
    """Run the compiler; the error on failure contains its output."""
    subprocess.run(command, check=True, capture_output=True, text=True)
