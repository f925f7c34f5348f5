"""The threads of the CPU engine under ThreadSanitizer, with more of them than cores too."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernels.cpu.conftest import SOURCES

COMPILER = shutil.which("c++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
FLAGS = ("-std=c++17", "-O2", "-g", "-fsanitize=thread", "-Wno-tsan", "-pthread")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER
    place = tmp_path_factory.mktemp("threads") / "threads"
    sources = [str(Path(__file__).with_name("threads.cpp")), str(SOURCES / "threads.cpp")]
    made = subprocess.run(
        [COMPILER, *FLAGS, f"-I{SOURCES}", *sources, "-o", str(place)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"this compiler has no ThreadSanitizer: {made.stderr.splitlines()[-1]}")
    return place


@pytest.mark.parametrize(("threads", "passes"), [(1, 2000), (2, 20000), (4, 10000), (16, 300)])
def test_every_chunk_once_and_in_its_stage(program: Path, threads: int, passes: int) -> None:
    ran = subprocess.run([program, str(threads), str(passes)], capture_output=True, text=True, timeout=100, check=False)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("this kernel's address space is not for this compiler's ThreadSanitizer")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"0 of {passes} passes went wrong\n"
