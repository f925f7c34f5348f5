"""The threads of the CPU engine under ThreadSanitizer, with more of them than cores too."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernels.cpu.conftest import SOURCES

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
    place, made = compiled(tmp_path_factory.mktemp("threads"), *SANITIZER)
    if made.returncode:
        pytest.skip(f"this compiler has no ThreadSanitizer: {made.stderr.splitlines()[-1]}")
    return place


@pytest.mark.parametrize(("threads", "passes"), [(1, 2000), (2, 20000), (4, 10000), (16, 300)])
def test_every_chunk_once_and_in_its_stage(program: Path, threads: int, passes: int) -> None:
    ran = run(program, threads, passes)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("this kernel's address space is not for this compiler's ThreadSanitizer")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"0 of {passes} passes went wrong\n"


def test_a_pool_may_end_while_its_threads_are_still_waking_up(tmp_path: Path) -> None:
    """Without the sanitizer, which makes everything too slow to meet."""
    program, made = compiled(tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    ran = run(program, 8, 1, 1000)
    assert (ran.returncode, ran.stdout) == (0, "0 of 1 passes went wrong\n")
