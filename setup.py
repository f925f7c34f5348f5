"""Puts models.toml, which lies at the root of the source tree, into the built package. The rest: pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRegistry(build_py):
    """An editable install reads the file where it lies; see localdflash.registry.shipped_file."""

    def run(self) -> None:
        """Build as usual, then copy the registry beside the modules."""
        super().run()
        if not self.editable_mode:
            self.copy_file("models.toml", str(Path(self.build_lib, "localdflash", "models.toml")))


setup(cmdclass={"build_py": BuildWithRegistry})
