"""Hugging Face folders: quantized here by the formula for one weight, and run by transformers with what these mean."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from localdflash.backends.cuda.assembly import CudaSettings, load_pair
from localdflash.backends.cuda.checkpoint import CheckpointSource
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.memory import predict_bytes
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.backends.cuda.stepper import SLACK, Way
from localdflash.backends.cuda.weights import load_target
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from tests.backends.cuda.test_memory import storages
from tests.support.checkpoint_folders import CONFIGS, QWEN3, VOCABULARY, Case, Packer, floats, fp8, gptq, make, write
from tests.support.tiny_models import SHAPE, write_drafter

CPU = torch.device("cpu")


def oracle(folder: Path, config: dict[str, Any], case: Case) -> Any:
    """Hugging Face's model with the weights that the checkpoint means."""
    write(folder, config, Case(case.meant))
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def logits(pair: CudaPair, ids: list[int]) -> Tensor:
    pair.forget()
    pair.prefill(ids)
    pair.step(Sampler(SamplingParams(temperature=1.0, seed=1)), 1)
    assert pair.stepper.sampling is not None
    return pair.stepper.sampling.logits[0]


@pytest.mark.parametrize(
    ("model", "packer", "shards"),
    [
        ("qwen3", gptq, 1),
        ("qwen3", fp8, 3),
        ("qwen3_moe", gptq, 2),
        ("qwen3_moe", fp8, 1),
        ("llama", gptq, 1),
        ("llama", floats, 1),
    ],
)
@torch.inference_mode()
def test_logits_are_those_of_transformers(
    model: str, packer: Packer, shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localdflash.backends.cuda.cuda_pair.AHEAD", 1)  # the next step would write over the logits
    config = CONFIGS[model]
    case = make(config, packer)
    pair = load_pair(write(tmp_path / "packed", config, case, shards), None, CPU, CudaSettings(context=128), REFERENCES)
    ids = torch.randint(VOCABULARY, (1, 90), generator=torch.Generator().manual_seed(2))
    expected = oracle(tmp_path / "meant", config, case)(ids).logits[0]
    assert float(expected.std()) > 0.5
    for length in (1, 17, 90):
        found = logits(pair, ids[0, :length].tolist())
        torch.testing.assert_close(found, expected[length - 1], atol=1e-4, rtol=1e-4)


def test_biases_of_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of q, k and v; transformers has one on o as well, which must be zero here."""
    monkeypatch.setattr("localdflash.backends.cuda.cuda_pair.AHEAD", 1)
    config = {**CONFIGS["llama"], "attention_bias": True, "rope_scaling": None}
    case = make(config, fp8)
    for prefix in [name.removesuffix(".weight") for name in case.meant if ".self_attn." in name]:
        rows = len(case.meant[f"{prefix}.weight"])
        bias = torch.zeros(rows) if prefix.endswith("o_proj") else torch.randn(rows)
        case.tensors[f"{prefix}.bias"] = case.meant[f"{prefix}.bias"] = bias
    pair = load_pair(write(tmp_path / "packed", config, case), None, CPU, CudaSettings(context=128), REFERENCES)
    ids = list(range(20))
    with torch.inference_mode():
        expected = oracle(tmp_path / "meant", config, case)(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(logits(pair, ids), expected, atol=1e-4, rtol=1e-4)


def test_a_drafter_drafts_for_a_folder(tmp_path: Path) -> None:
    config = {**QWEN3, "num_attention_heads": 2, "num_key_value_heads": 1}
    target = write(tmp_path / "packed", config, make(config, gptq))
    pair = load_pair(target, write_drafter(tmp_path / "drafter", SHAPE), CPU, CudaSettings(context=128), REFERENCES)
    ways: tuple[Way, Way] = ("plain", "block")
    texts = []
    for way in ways:
        pair.forget()
        steps = generate(pair.only(way), Request(list(range(30)), 20))
        texts.append([token for step in steps for token in step.tokens])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("packer", [gptq, fp8, floats])
@pytest.mark.parametrize("model", ["qwen3", "qwen3_moe"])
def test_memory_is_planned(model: str, packer: Packer, tmp_path: Path) -> None:
    """The weights themselves; padding of small matrices makes the rest."""
    config, reports = CONFIGS[model], list[tuple[int, int]]()
    folder = write(tmp_path / "packed", config, make(config, packer))
    source = CheckpointSource(folder, CPU, lambda done, total: reports.append((done, total)))
    weights = load_target(source, source.config, 8, llama=False)
    rope = weights.rope.cos.nbytes + weights.rope.sin.nbytes
    assert sum(storages(weights, set())) - rope == pytest.approx(source.nbytes, rel=0.01)
    assert weights.head.nbytes == source.head_nbytes
    assert reports[-1][0] == reports[-1][1]
    assert predict_bytes(source.nbytes, source.config, None, 0, torch.float16).total(128 - SLACK) > source.nbytes
