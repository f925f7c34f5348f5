"""Qwen3.5 on the CPU engine: delta nets, gated attention, an expert for all rows, against Hugging Face's model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
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
from tests.backends.cpu.rounded import (
    engine_logits,
    exact_logits,
    halved_attention,
    relative,
    rounded,
    rounded_experts,
)
from tests.support.converted_models import ids_of
from tests.support.llama_ways import WIDE
from tests.support.qwen35_models import case_of

pytestmark = needs_library


def round_as_the_engine_does(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round inputs of products to 8 bits, keys and values to float16; routers and states stay in float32."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("shared_expert_gate"):
            module.register_forward_pre_hook(lambda _module, inputs: (rounded(inputs[0]),))
        if isinstance(module, modeling_qwen3_5_moe.Qwen3_5MoeExperts):
            monkeypatch.setattr(module, "forward", rounded_experts(_expert_of(module)))
    for modeling in (modeling_qwen3_5, modeling_qwen3_5_moe):
        monkeypatch.setattr(modeling, "eager_attention_forward", halved_attention(modeling.eager_attention_forward))


def _expert_of(e: Any) -> Callable[[Tensor, int], Tensor]:
    def expert(x: Tensor, index: int) -> Tensor:
        gate, up = F.linear(x, e.gate_up_proj[index]).chunk(2)
        return F.linear(rounded(F.silu(gate) * up), e.down_proj[index])

    return expert


@pytest.mark.parametrize(("architecture", "attention"), [("qwen35", (3,)), ("qwen35", (0, 2)), ("qwen35moe", (3,))])
def test_logits_are_those_of_hugging_face_with_rounded_activations(
    architecture: str,
    attention: Sequence[int],
    tmp_path: Path,
    new_team: Callable[..., ThreadPool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the last bits in the first row; later a rounding tips over now and then, and a state keeps that.

    llama.cpp, which rounds activations too, reads the same file and is about as far from exact logits.
    """
    case, ids = case_of(architecture, "Q8_0", attention), ids_of(120)
    path = case.write(tmp_path / "model.gguf", "Q8_0")
    found, exact = engine_logits(CpuTarget(open_target(path), new_team()), ids), exact_logits(case, ids)
    if attention == (3,):
        target = LlamaCppTarget(path, 128, 1, way=Way(WIDE.flags, tuple(range(1, 14))))
        theirs = engine_logits(target, ids[:60])
        target.close()
        assert relative(theirs, exact[:60]) < 0.2
        assert relative(found[:60], exact[:60]) < 1.5 * relative(theirs, exact[:60])
    round_as_the_engine_does(case.model, monkeypatch)
    same_rounding = exact_logits(case, ids)
    assert relative(found[:1], same_rounding[:1]) < 1e-4
    assert relative(found, same_rounding) < 0.05
    assert relative(found, exact) < 0.15
