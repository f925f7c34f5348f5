"""The checks of `doctor --check-gpu` on the embedded pair.

With LOCALDFLASH_GPU_TESTS=interpreter the references stand in for the kernels, whose rows depend on torch's products.
"""

from pathlib import Path

import pytest
import torch

from localdflash.backends.cuda.assembly import load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import KERNELS, REFERENCES
from localdflash.backends.cuda.proof import stages
from localdflash.lab.scripts import synthetic
from localdflash.models.load_options import Options

EMBEDDED = Path(__file__).parents[2] / "localdflash" / "models" / "embedded"
STAGES = ("operations", "short prompt", "rows", "prompts", "blocks", "texts", "sampled texts", "graphs")
CONTEXT = 1024


@pytest.fixture(scope="module")
def pair(device: torch.device) -> CudaPair:
    ops = KERNELS if device.type == "cuda" else REFERENCES
    files = EMBEDDED / "target.gguf", EMBEDDED / "drafter.gguf"
    return load_pair(*files, device, Options(context=CONTEXT), ops)


@pytest.mark.parametrize("stage", STAGES)
def test_gpu_check_stages_pass(stage: str, pair: CudaPair, device: torch.device) -> None:
    if stage == "rows" and device.type != "cuda":
        pytest.skip("torch's products on a processor round a row by its place")
    checks = dict(stages.stages(pair, list(range(100, 140)), lambda _: None))
    assert tuple(checks) == STAGES
    checks[stage]()


def test_contexts_beyond_the_first_graph(device: torch.device, tmp_path: Path) -> None:
    ops = KERNELS if device.type == "cuda" else REFERENCES
    synthetic.write_target(tmp_path / "target.gguf", synthetic.TINY, "tiny")
    pair = load_pair(tmp_path / "target.gguf", None, device, Options(context=3000, draft=False), ops)
    dict(stages.stages(pair, list(range(40)), lambda _: None))["long context"]()
