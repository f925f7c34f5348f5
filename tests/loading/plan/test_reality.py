"""Planned memory compared with the resident memory after loading and generating."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localdflash.models.memory.parts import PROGRAM, SCRATCH, total
from tests.support.random_models import Shape, write

CLOSE = 100e6  # bytes
MODELS = {
    "q8": (Shape("Q8_0", 512, 12, 8, 4, 2048, 4096), 4096),
    "q4, repacked": (Shape("Q4_0", 1024, 16, 16, 8, 4096, 8192), 8192),
    "f16": (Shape("F16", 1024, 9, 16, 8, 4096, 16384), 2048),
}


def run(pair: str, context: int, backend: str) -> Any:
    command = [sys.executable, "-P", str(Path(__file__).with_name("reality.py")), pair, str(context), backend]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: Any) -> None:
    planned, measured = found["predicted"], found["measured"]
    assert abs(total(planned) - found["resident"]) <= max(0.05 * found["resident"], CLOSE)
    assert planned.keys() == measured.keys()
    for name in planned.keys() - {PROGRAM, SCRATCH}:  # llama.cpp rounds what it says to a hundredth of a MiB
        assert measured[name] == pytest.approx(planned[name], abs=1e4), name
    assert measured[SCRATCH] <= planned[SCRATCH] + 1e6


@pytest.mark.usefixtures("cpu_engine")
def test_the_plan_of_the_embedded_pair() -> None:
    check(run("embedded", 0, "cpu"))


@pytest.mark.nightly
@pytest.mark.usefixtures("cpu_engine")
@pytest.mark.parametrize("backend", ["llama.cpp", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_the_plan_of_synthetic_models(name: str, backend: str, tmp_path: Path) -> None:
    shape, context = MODELS[name]
    path = write(tmp_path / "model.gguf", shape)
    found = run(str(path), context, backend)
    check(found)
    assert abs(total(found["predicted"]) - found["resident"]) <= 60e6  # no file twice, not even a repacked one
