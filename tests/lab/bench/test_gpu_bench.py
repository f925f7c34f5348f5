"""The scripts of the GPU day on a CPU: the phases on tiny shapes, what they save, and what the summary makes of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from localdflash.lab.scripts.gpu import steps
from localdflash.lab.scripts.gpu.gpu_summary import goals, lines
from localdflash.lab.scripts.gpu.setup import BenchReport, Setup

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "lab" / "scripts" / "gpu" / "gpu_run.py"
BLOCKED = "llama_cpp gguf click psutil platformdirs jinja2 tokenizers"


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(torch.device("cpu"), tiny=True, folder=tmp_path / "models", llama_source=None)


@pytest.mark.nightly
def test_the_pair_is_timed(setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "DRAFTER_TYPES", steps.DRAFTER_TYPES[:1])
    report = BenchReport(tmp_path / "results.json", "steps")
    steps.run(setup, report)
    found = json.loads(report.path.read_text())["phases"]["steps"]["Q4_K"]
    assert found["step_ms_64"]["records"]["lookup"] == {"drafted": 15, "by": 1, "status": 0}
    assert found["step_ms_64"]["records"]["draft"] == {"drafted": 15, "by": 2, "status": 0}
    assert found["alone_us_plain"]["attention"]["launches"] == 8
    assert found["acceptance"]["plain"]["tau"] == 1.0
    assert found["memory"]["predicted"] > 0


def test_goals_from_whatever_is_there() -> None:
    step = {"step_ms_1024": {"plain": 2.0, "block_in_plain": 1.5}, "weights": {"verify": 5e9}}
    phases = {
        "environment": {"read_bandwidth_gb_s": 4000.0},
        "steps": {"Q4_K": step, "status": "done"},
        "llama": {"1024 with flash attention": {"plain_ms": 3.0}, "status": "done"},
        "embedded": {"overall": {"identical": "219/220"}},
    }
    verdicts = {goal.name: goal.met for goal in goals(phases)}
    assert verdicts["AR step over reading the weights, at 1024"] is True
    assert verdicts["draft + verify in AR steps at 1024"] is False
    assert verdicts["draft + verify in AR steps at 16384"] is None
    assert verdicts["AR against llama.cpp"] is True
    assert verdicts["embedded prompts that differ"] is False
    assert any("MISSED" in line for line in lines(phases))


@pytest.mark.system
def test_only_what_a_gpu_machine_has_is_needed(tmp_path: Path) -> None:
    """The whole import chain, with most of our dependencies refused; the package need not be installed."""
    program = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in "{BLOCKED}".split():
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Refuse())
sys.argv = ["run.py", "--json", {str(tmp_path / "r.json")!r}, "--device", "cpu", "--tiny", "--phase", "environment"]
import runpy
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["phases"]["environment"]["error"] == ""
