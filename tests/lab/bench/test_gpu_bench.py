"""GPU benchmark scripts on a CPU: phases on tiny shapes, saved results and summary."""

import json
import subprocess
import sys
from pathlib import Path

import llama_cpp
import pytest
import torch

from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.engine.draft import EMPTY_DRAFT
from localdflash.lab.scripts import synthetic
from localdflash.lab.scripts.gpu import gpu_llama, steps
from localdflash.lab.scripts.gpu.gpu_summary import goals, lines
from localdflash.lab.scripts.gpu.setup import BenchReport, Setup
from localdflash.models.shapes.dflash_config import check_fit
from localdflash.models.shapes.dflash_file import config_of_gguf
from localdflash.models.weights import gguf
from localdflash.models.weights.ggml_types import GGMLType

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "lab" / "scripts" / "gpu" / "gpu_run.py"
BLOCKED = "llama_cpp gguf click psutil platformdirs jinja2 tokenizers"


def test_an_unknown_phase_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--json", str(tmp_path / "r.json"), "--only", "steps,sleep"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("--only sleep: unknown phase (expected environment, ")) == (1, True)


def test_the_fastest_repetition_of_llama_bench_counts() -> None:
    about = {"build_commit": "c", "backends": "CUDA"}
    tests = [
        *(about | {"n_gen": 0, "n_prompt": rows, "samples_ns": [9e6, 16e6, 8e6]} for rows in gpu_llama.ROWS),
        about | {"n_gen": 2, "n_prompt": 0, "samples_ns": [8e6, 9e6], "samples_ts": [250.0, 222.0]},
    ]
    found = gpu_llama.times(tests)
    assert (found["plain_ms"], found["plain_tok_s"], found["rows_16_ms"], found["rows_16_in_plain"]) == (4, 250, 8, 2)


@pytest.mark.nightly
def test_the_pair_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "DRAFTER_TYPES", steps.DRAFTER_TYPES[:1])
    report = BenchReport(tmp_path / "results.json", "steps")
    steps.run(Setup(torch.device("cpu"), tiny=True, folder=tmp_path / "models", llama_source=None), report)
    found = json.loads(report.path.read_text())["phases"]["steps"]["Q4_K"]
    assert found["step_ms_64"]["records"]["lookup"] == {"drafted": 15, "by": 1, "status": 0}
    assert found["step_ms_64"]["records"]["draft"] == {"drafted": 15, "by": 2, "status": 0}
    assert found["alone_us_plain"]["attention"]["launches"] == 8
    assert found["acceptance"]["plain"]["tau"] == 1.0
    assert found["memory"]["predicted"] > 0


def test_goals_of_partial_results() -> None:
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
def test_the_scripts_import_only_packages_of_a_gpu_machine(tmp_path: Path) -> None:
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


def test_a_synthetic_drafter_fits_its_target(tmp_path: Path) -> None:
    synthetic.write_drafter(tmp_path / "drafter.gguf", synthetic.TINY_DRAFTER, GGMLType.Q4_K, "tiny")
    header = gguf.read_header(tmp_path / "drafter.gguf")
    config = config_of_gguf(header)
    assert (config.block_size, config.mask_token_id, config.taps) == (16, 511, (1, 3, 5))
    check_fit(config, 256, 512, 8, "drafter")
    assert float(gguf.load_tensor(header, "fc.weight").std()) == pytest.approx(synthetic.STD, rel=0.1)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", synthetic.HEADS)
def test_llama_cpp_and_torch_agree_on_synthetic_models(kind: GGMLType, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    synthetic.write_target(target, synthetic.TINY, "tiny", kind)
    model = llama_cpp.Llama(str(target), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    model.eval([1, 2, 3, 4])
    theirs = torch.tensor(model.scores[3].copy())
    model.close()
    ours = TorchTarget(load_decoder(target))
    ours.extend([1, 2, 3])
    logits = torch.from_numpy(ours.verify(4, EMPTY_DRAFT).logits[0])
    assert float((logits - theirs).abs().max()) < 0.05 * float(theirs.abs().max())
