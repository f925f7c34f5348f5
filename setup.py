"""Compile the CPU engine and copy models.toml from the root into the package; all other settings: pyproject.toml.

The engine is a shared library without Python code, localdflash/backends/cpu/_kernels.so. If it cannot be compiled, the
package is installed without it, and pairs run only with the extra `llama`.
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
    """Build step that copies the registry; an editable install reads models.toml at the root."""

    def run(self) -> None:
        """Build the modules, then copy the registry next to them."""
        super().run()
        if not self.editable_mode:
            self.copy_file("models.toml", str(Path(self.build_lib, "localdflash", "models.toml")))


class BuildLibrary(build_ext):
    """Build step that compiles with kernels/cpu/sources.py, since setuptools cannot give each source its own flags."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the library; if that fails, print the reason in one line and continue without the library."""
        library = Path(self.build_temp, "_kernels.so")
        destination = Path(self.get_ext_fullpath(ext.name))
        destination.unlink(missing_ok=True)  # left by an earlier build
        try:
            compiler = find_compiler()
            unsupported = runpy.run_path(f"{SOURCES}/sources.py")["compile_library"](
                library,
                compiler,
                native=os.environ.get("LOCALDFLASH_KERNELS") == "native",
                static=sys.platform == "linux",
            )
        except (OSError, subprocess.CalledProcessError) as error:
            without = "localdflash: built without the CPU engine, only the extra `llama` runs pairs"
            self.announce(f"{without}: {describe_error(error)}", WARNING)
            return
        for name in unsupported:
            self.announce(f"localdflash: built without {name}, whose flags {compiler[0]} does not know", WARNING)
        destination.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(library), str(destination))

    def copy_extensions_to_source(self) -> None:
        """Copy the library next to the sources for an editable install; remove an earlier one even if there is none."""
        Path("localdflash/backends/cpu/_kernels.so").unlink(missing_ok=True)
        super().copy_extensions_to_source()

    def get_ext_filename(self, fullname: str) -> str:
        """Return a file name without the Python version, since the library is not a Python module."""
        return os.path.join(*fullname.split(".")) + ".so"


class WheelOfEveryPython(bdist_wheel):
    """Wheel for one platform and every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """See bdist_wheel."""
        return "py3", "none", super().get_tag()[2]


def find_compiler() -> list[str]:
    """Return the compiler command: $CXX, else the first installed of `COMPILERS`. OSError if there is none."""
    if sys.platform == "win32":
        raise OSError("it is not built on Windows")
    if given := shlex.split(os.environ.get("CXX", "")):
        return given
    if found := next(filter(shutil.which, COMPILERS), None):
        return [found]
    raise OSError(f"no C++ compiler ({', '.join(COMPILERS)}) was found")


def describe_error(error: OSError | subprocess.CalledProcessError) -> str:
    """Return in one line the first error in the compiler's output, or why the compiler did not run."""
    if isinstance(error, OSError):
        return str(error)
    message = next((line for line in error.stderr.splitlines() if "error" in line), f"exit status {error.returncode}")
    return f"{error.cmd[0]} failed: {message.strip()}"


setup(
    cmdclass={"build_py": BuildWithRegistry, "build_ext": BuildLibrary, "bdist_wheel": WheelOfEveryPython},
    ext_modules=[Extension("localdflash.backends.cpu._kernels", [], optional=True)],
)
