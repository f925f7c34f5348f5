"""`make gpu-test` needs only the packages that its line in the Makefile names."""

import os
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_light_install import HIDE

ENOUGH = ("torch", "triton", "numpy", "safetensors", "pytest")


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_gpu_tests_run_with_five_packages(root: Path, tmp_path: Path) -> None:
    enough = {
        *ENOUGH,
        *(Requirement(line).name for name in ENOUGH for line in requires(name) or [] if "extra" not in line),
    }
    ours = {canonicalize_name(Requirement(line).name) for line in requires("localdflash") or []} - {"localdflash"}
    others = ours - {*map(canonicalize_name, enough)}
    absent = {name for name, owners in packages_distributions().items() if others & {*map(canonicalize_name, owners)}}
    assert {"hypothesis", "pytest_timeout", "xdist", "psutil"} <= absent
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(hidden=sorted(absent)))
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
