"""check.cpp beside this file, instruction sets against the portable one: under sanitizers, and on an emulated ARM."""

import runpy
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

CPU = Path(__file__).parents[3] / "kernels" / "cpu"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1")
SECONDS = 110


def build(folder: Path, compiler: str, machine: str = "", extra: Sequence[str] = (), link: Sequence[str] = ()) -> Path:
    """check.cpp, linked with the library's objects, which stay in the folder."""
    runpy.run_path(str(CPU / "sources.py"))["compile_library"](folder / "libldf.so", (compiler,), extra, machine)
    return linked(folder, "check", compiler, [*extra, *link])


def linked(folder: Path, name: str, compiler: str, flags: Sequence[str]) -> Path:
    """A program of this folder, with the objects of a library that was built."""
    objects = [str(place) for place in (folder / "libldf.objects").glob("*.o")]
    common = [*runpy.run_path(str(CPU / "sources.py"))["FLAGS"], "-Werror", "-I", str(CPU)]
    program, source = folder / name, Path(__file__).with_name(f"{name}.cpp")
    subprocess.run([compiler, *common, *flags, str(source), *objects, "-pthread", "-o", str(program)], check=True)
    return program


def results(command: Sequence[str | Path]) -> dict[str, str]:
    """What is said of each instruction set."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return said


@pytest.mark.nightly
@pytest.mark.timeout(5 * SECONDS)  # two compilations, beside other work
def test_the_same_bits_and_nothing_for_the_sanitizers(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    said = results([build(tmp_path, "c++", extra=SANITIZERS)])
    assert "portable" in said
    assert set(said.values()) == {"ok"}


@pytest.mark.nightly
@pytest.mark.timeout(5 * SECONDS)  # two compilations, beside other work
def test_the_same_bits_on_an_emulated_arm(tmp_path: Path) -> None:
    compiler, emulator = "aarch64-linux-gnu-g++", shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    if emulator is None:
        pytest.skip("there is no qemu-aarch64")
    program = build(tmp_path, compiler, "aarch64", link=["-static"])
    assert results([emulator, "-cpu", "max", program]) == {"neon": "ok", "portable": "ok"}
    done = subprocess.run([emulator, "-cpu", "cortex-a53", program], capture_output=True, text=True, check=True)
    assert done.stdout == "portable: ok\n"  # it has no dot products
