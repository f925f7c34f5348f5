"""Qwen3.5 on the CPU engine: delta nets, gated attention, an expert for all rows, against Hugging Face's model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.llamacpp.decode_flags import Way
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import relative, rounded
from tests.backends.cpu.test_gpt_oss import logits_of, wanted_of
from tests.support.converted_models import ids_of
from tests.support.llama_ways import WIDE
from tests.support.qwen35_models import case_of

pytestmark = needs_library
NewTeam = Callable[..., ThreadPool]
ARCHITECTURES = ("qwen35", "qwen35moe")


def round_as_the_engine_does(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of products in 8 bits, keys and values in float16; routers, gates of an expert and states in float32."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("shared_expert_gate"):
            module.register_forward_pre_hook(lambda _module, inputs: (rounded(inputs[0]),))
        if isinstance(module, modeling_qwen3_5_moe.Qwen3_5MoeExperts):
            monkeypatch.setattr(module, "forward", _RoundedExperts(module))
    for modeling in (modeling_qwen3_5, modeling_qwen3_5_moe):
        monkeypatch.setattr(modeling, "eager_attention_forward", _halved(modeling.eager_attention_forward))


def _halved(exact: Any) -> Any:
    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **others: Any) -> Any:
        return exact(module, q, k.half().float(), v.half().float(), *rest, **others)

    return attend


class _RoundedExperts:
    def __init__(self, experts: Any) -> None:
        self.experts = experts

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        e, out = self.experts, torch.zeros_like(x)
        for row, (experts, shares) in enumerate(zip(chosen.tolist(), weights, strict=True)):
            for expert, share in zip(experts, shares, strict=True):
                gate, up = F.linear(rounded(x[row]), e.gate_up_proj[expert]).chunk(2)
                out[row] += share * F.linear(rounded(F.silu(gate) * up), e.down_proj[expert])
        return out


@pytest.mark.parametrize(("architecture", "attention"), [("qwen35", (3,)), ("qwen35", (0, 2)), ("qwen35moe", (3,))])
def test_logits_are_those_of_hugging_face_with_rounded_activations(
    architecture: str, attention: Sequence[int], tmp_path: Path, new_team: NewTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bits in the first row; later a rounding tips over now and then, and a state keeps that."""
    case, ids = case_of(architecture, "Q8_0", attention), ids_of(120)
    target = CpuTarget(open_target(case.write(tmp_path / "model.gguf", "Q8_0")), new_team())
    found, exact = logits_of(target, ids), wanted_of(case, ids)
    round_as_the_engine_does(case.model, monkeypatch)
    same_rounding = wanted_of(case, ids)
    assert relative(found[:1], same_rounding[:1]) < 1e-4
    assert relative(found, same_rounding) < 0.05
    assert relative(found, exact) < 0.15


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_llama_cpp_is_as_far_from_exact_logits(architecture: str, tmp_path: Path, new_team: NewTeam) -> None:
    """Activations of 8 bits are the difference in both; the file is one that llama.cpp knows, and means the same."""
    case, ids = case_of(architecture, "Q8_0"), ids_of(60)
    path = case.write(tmp_path / "model.gguf", "Q8_0")
    exact, ours = wanted_of(case, ids), logits_of(CpuTarget(open_target(path), new_team()), ids)
    target = LlamaCppTarget(path, 128, 1, way=Way(WIDE.flags, tuple(range(1, 14))))
    theirs = logits_of(target, ids)
    target.close()
    assert relative(theirs, exact) < 0.2
    assert relative(ours, exact) < 1.5 * relative(theirs, exact)
