"""Compile the CPU engine, and copy models.toml, which is at the root, into the package. The rest: pyproject.toml.

The engine is a plain shared library, localdflash/backends/cpu/_kernels.so, with no Python in it. If it cannot be
compiled the package is installed without it: only the extra `llama` then runs a pair.
"""

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from logging import WARNING
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

SOURCES = "kernels/cpu"
COMPILERS = ("c++", "g++", "clang++")


class BuildWithRegistry(build_py):
    """Copies the registry; an editable install reads the original (models.registry.registry.shipped_file)."""

    def run(self) -> None:
        """Build as usual, then copy the registry beside the modules."""
        super().run()
        if not self.editable_mode:
            self.copy_file("models.toml", str(Path(self.build_lib, "localdflash", "models.toml")))


class BuildLibrary(build_ext):
    """Compiles by kernels/cpu/sources.py, because each source has flags of its own, which setuptools cannot express."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the library, or say in one line why there is none."""
        library = Path(self.build_temp, "_kernels.so")
        place = Path(self.get_ext_fullpath(ext.name))
        place.unlink(missing_ok=True)  # of an earlier build, whose sources were others
        try:
            chosen = compiler()
            left_out = runpy.run_path(f"{SOURCES}/sources.py")["compile_library"](
                library,
                chosen,
                native=os.environ.get("LOCALDFLASH_KERNELS") == "native",
                static=sys.platform == "linux",
            )
        except (OSError, subprocess.CalledProcessError) as error:
            without = "localdflash: built without the CPU engine, only the extra `llama` runs pairs"
            self.announce(f"{without}: {reason(error)}", WARNING)
            return
        for name in left_out:
            self.announce(f"localdflash: built without {name}, whose flags {chosen[0]} does not know", WARNING)
        place.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(library), str(place))

    def copy_extensions_to_source(self) -> None:
        """Give an editable install the library beside its sources, never an earlier build's."""
        Path("localdflash/backends/cpu/_kernels.so").unlink(missing_ok=True)
        super().copy_extensions_to_source()

    def get_ext_filename(self, fullname: str) -> str:
        """Return one name for every Python: the library is no module."""
        return os.path.join(*fullname.split(".")) + ".so"


class WheelOfEveryPython(bdist_wheel):
    """A wheel for one platform and every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """See bdist_wheel."""
        return "py3", "none", super().get_tag()[2]


def compiler() -> list[str]:
    """The compiler: $CXX, or the first that is installed. OSError if there is none."""
    if sys.platform == "win32":
        raise OSError("it is not built on Windows")
    if given := shlex.split(os.environ.get("CXX", "")):
        return given
    if found := next(filter(shutil.which, COMPILERS), None):
        return [found]
    raise OSError(f"no C++ compiler ({', '.join(COMPILERS)}) was found")


def reason(error: OSError | subprocess.CalledProcessError) -> str:
    """The first error that a compiler names, or why it did not run, in one line."""
    if isinstance(error, OSError):
        return str(error)
    told = next((line for line in error.stderr.splitlines() if "error" in line), f"exit status {error.returncode}")
    return f"{error.cmd[0]} failed: {told.strip()}"


setup(
    cmdclass={"build_py": BuildWithRegistry, "build_ext": BuildLibrary, "bdist_wheel": WheelOfEveryPython},
    ext_modules=[Extension("localdflash.backends.cpu._kernels", [], optional=True)],
)
