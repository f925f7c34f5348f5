"""The CPU engine's thread pool under ThreadSanitizer, and the instruction sets that a compiler can build."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from localdflash.backends.cpu.cpu_library import Library
from tests.kernels.cpu.conftest import BUILD, SOURCES

COMPILER = shutil.which("c++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
FLAGS = ("-std=c++17", "-O2", "-g", "-pthread")
SANITIZER = ("-fsanitize=thread", "-Wno-tsan")
Result = subprocess.CompletedProcess[str]


def compiled(folder: Path, *flags: str) -> tuple[Path, Result]:
    assert COMPILER
    place = folder / "threads"
    sources = [str(Path(__file__).with_name("threads.cpp")), str(SOURCES / "threads.cpp")]
    return place, run(COMPILER, *FLAGS, *flags, f"-I{SOURCES}", *sources, "-o", place)


def run(*command: object) -> Result:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, compilation = compiled(tmp_path_factory.mktemp("threads"), *SANITIZER)
    if compilation.returncode:
        pytest.skip(f"this compiler has no ThreadSanitizer: {compilation.stderr.splitlines()[-1]}")
    return place


@pytest.mark.parametrize(("threads", "passes"), [(1, 2000), (2, 20000), (4, 10000), (16, 300)])
def test_every_chunk_runs_once_in_its_stage(program: Path, threads: int, passes: int) -> None:
    ran = run(program, threads, passes)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("this kernel's address space is not for this compiler's ThreadSanitizer")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"0 of {passes} passes went wrong\n"


def test_a_pool_may_end_while_its_threads_are_still_waking_up(tmp_path: Path) -> None:
    """The program runs without the sanitizer, under which the race is too unlikely."""
    program, compilation = compiled(tmp_path)
    assert (compilation.returncode, compilation.stderr) == (0, "")
    ran = run(program, 8, 1, 1000)
    assert (ran.returncode, ran.stdout) == (0, "0 of 1 passes went wrong\n")


OLD = """#!/bin/sh
for option; do
  case $option in -mavxvnni) echo "error: unrecognized command-line option '$option'" >&2; exit 1;; esac
done
exec c++ "$@" -O0
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the flags of x86")
def test_unsupported_flags_drop_only_their_instruction_sets(tmp_path: Path) -> None:
    compiler = tmp_path / "old"
    compiler.write_text(OLD)
    compiler.chmod(0o755)
    left_out = BUILD["compile_library"](tmp_path / "libldf.so", (str(compiler),))
    assert left_out == ["avxvnni"]
    here = Library(tmp_path / "libldf.so").instruction_sets
    assert here == [name for name in ("avx512vnni", "avx2", "portable") if name in here]
    assert here[-1] == "portable"


@pytest.mark.skipif(platform.system() != "Linux", reason="elsewhere all sets are compiled")
def test_the_sets_of_this_processor_are_its_best_and_the_portable_one(library: Library) -> None:
    chosen = BUILD["_sets_of_this_processor"]()
    names = [Path(name).stem.removeprefix("isa_") for name in chosen]
    assert names == list(dict.fromkeys([library.instruction_sets[0], "portable"]))
