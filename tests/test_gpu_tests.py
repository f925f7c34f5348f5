"""`make gpu-test` wants no more of a machine than its line in the Makefile says."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ENOUGH = ("torch", "triton", "numpy", "safetensors", "pytest")
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def with_their_own(names: tuple[str, ...]) -> set[str]:
    """Distributions with all that they require, extras left out."""
    found, waiting = set[str](), list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            needed = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:  # of another system
            continue
        found.add(name)
        waiting += [one.name for one in needed if "extra" not in str(one.marker)]
    return found


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_five_packages_suffice(root: Path, tmp_path: Path) -> None:
    enough = with_their_own(ENOUGH)
    absent = {
        module
        for module, owners in packages_distributions().items()
        if not enough & {owner.lower().replace("_", "-") for owner in owners} and module != "localdflash"
    }
    assert {"hypothesis", "pytest_timeout", "xdist", "psutil"} <= absent
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.format(absent=sorted(absent)))
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # as where there are none
        "PYTEST_ADDOPTS": "-q -k 'begin or caught_up'",
    }
    python = f"env LOCALDFLASH_GPU_TESTS=interpreter PYTHONPATH={tmp_path}:{root} {sys.executable}"
    command = ["make", "gpu-test", f"GPU_PYTHON={python}"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "passed" in done.stdout
