"""Compiling the library by a compiler that does not know every instruction set, as GCC before 11."""

import platform
import shutil
from pathlib import Path

import pytest

from localdflash.backends.cpu.cpu_library import Library
from tests.kernels.cpu.conftest import BUILD

OLD = """#!/bin/sh
for option; do
  case $option in -mamx-*|-mavxvnni) echo "error: unrecognized command-line option '$option'" >&2; exit 1;; esac
done
exec c++ "$@" -O0
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the flags of x86")
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_flags_that_a_compiler_lacks_cost_their_instruction_sets_alone(tmp_path: Path) -> None:
    compiler = tmp_path / "old"
    compiler.write_text(OLD)
    compiler.chmod(0o755)
    left_out = BUILD["compile_library"](tmp_path / "libldf.so", (str(compiler),))
    assert left_out == ["amx", "avxvnni"]
    here = Library(tmp_path / "libldf.so").instruction_sets
    assert here == [name for name in ("avx512vnni", "avx2", "portable") if name in here]
    assert here[-1] == "portable"


@pytest.mark.skipif(platform.system() != "Linux", reason="elsewhere all sets are compiled")
def test_the_sets_of_this_processor_are_its_best_and_the_portable_one(library: Library) -> None:
    chosen = BUILD["_sets_of_this_processor"]()
    names = [Path(name).stem.removeprefix("isa_") for name in chosen]
    assert names == list(dict.fromkeys([library.instruction_sets[0], "portable"]))
