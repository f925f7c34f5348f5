"""Runs check.cpp, which compares instruction sets with the portable one, under sanitizers and on an emulated ARM."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kernels.cpu.conftest import BUILD, SOURCES

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1")
SECONDS = 110
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(5 * SECONDS)]  # two compilations on a busy machine


def build(folder: Path, compiler: str, machine: str = "", extra: Sequence[str] = (), link: Sequence[str] = ()) -> Path:
    """Link check.cpp with the library's objects."""
    BUILD["compile_library"](folder / "libldf.so", (compiler,), extra, machine)
    objects = [str(path) for path in (folder / "libldf.objects").glob("*.o")]
    common = [*BUILD["FLAGS"], "-Werror", "-I", str(SOURCES), *extra, *link]
    program, source = folder / "check", Path(__file__).with_name("check.cpp")
    subprocess.run([compiler, *common, str(source), *objects, "-pthread", "-o", str(program)], check=True)
    return program


def results(command: Sequence[str | Path]) -> dict[str, str]:
    """Return the program's result for each instruction set."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_bits_match_under_sanitizers(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    found = results([build(tmp_path, "c++", extra=SANITIZERS)])
    assert "portable" in found
    assert set(found.values()) == {"ok"}


def test_bits_match_on_an_emulated_arm(tmp_path: Path) -> None:
    compiler, emulator = "aarch64-linux-gnu-g++", shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if shutil.which(compiler) is None or emulator is None:
        pytest.skip(f"there is no {compiler}, or no qemu-aarch64")
    program = build(tmp_path, compiler, "aarch64", link=["-static"])
    assert results([emulator, "-cpu", "max", program]) == {"neon": "ok", "portable": "ok"}
    assert results([emulator, "-cpu", "cortex-a53", program]) == {
        "portable": "ok"
    }  # the emulated processor has no dot products
