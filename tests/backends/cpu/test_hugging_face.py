"""The CPU target on files laid out as by llama.cpp's converter, against Hugging Face's models with equal rounding."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.llamacpp.decode_flags import DecodeMode
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.gguf_decoder import load_decoder
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import (
    engine_logits,
    exact_logits,
    halved_attention,
    logits_of,
    relative,
    round_inputs,
    rounded,
    rounded_experts,
)
from tests.support import gpt_oss_models, qwen35_models
from tests.support.converted_models import MODELS, case_of, ids_of
from tests.support.target_models import WIDE

pytestmark = needs_library
NewPool = Callable[..., ThreadPool]


@pytest.mark.parametrize("name", MODELS)
def test_dense_models_and_mixtures(name: str, tmp_path: Path, new_team: NewPool) -> None:
    kind, ids = "Q4_1" if name == "llama" else "Q8_0", ids_of(60)
    case = case_of(name, kind)
    path = case.write(tmp_path / "model.gguf", kind)
    found, model = engine_logits(CpuTarget(open_target(path), new_team()), ids), load_decoder(path)
    round_inputs(model)
    same_rounding, _ = logits_of(model, ids)
    assert relative(found[:4], same_rounding[:4]) < 0.02  # codes differ by one here and there; wrong RoPE gives 1
    assert relative(found, same_rounding) < 0.02
    assert relative(found, exact_logits(case, ids)) < 0.08


def round_as_the_engine_does(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round inputs of products to 8 bits, K and V to float16; routers and states stay in float32."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("shared_expert_gate"):
            module.register_forward_pre_hook(lambda _module, inputs: (rounded(inputs[0]),))
        for kind, expert_of in EXPERTS.items():
            if isinstance(module, kind):
                monkeypatch.setattr(module, "forward", rounded_experts(expert_of(module)))
    for modeling in (modeling_gpt_oss, modeling_qwen3_5, modeling_qwen3_5_moe):
        monkeypatch.setattr(modeling, "eager_attention_forward", halved_attention(modeling.eager_attention_forward))


def gpt_oss_expert(e: Any) -> Callable[[Tensor, int], Tensor]:
    def expert(x: Tensor, index: int) -> Tensor:
        raised = F.linear(x, e.gate_up_proj[index].T, e.gate_up_proj_bias[index])
        return F.linear(rounded(e._apply_gate(raised)), e.down_proj[index].T, e.down_proj_bias[index])

    return expert


def qwen35_expert(e: Any) -> Callable[[Tensor, int], Tensor]:
    def expert(x: Tensor, index: int) -> Tensor:
        gate, up = F.linear(x, e.gate_up_proj[index]).chunk(2)
        return F.linear(rounded(F.silu(gate) * up), e.down_proj[index])

    return expert


EXPERTS: dict[type, Callable[[Any], Callable[[Tensor, int], Tensor]]] = {
    modeling_gpt_oss.GptOssExperts: gpt_oss_expert,
    modeling_qwen3_5_moe.Qwen3_5MoeExperts: qwen35_expert,
}


@pytest.mark.parametrize(("kind", "experts"), [("F32", "F32"), ("Q8_0", "MXFP4")])
def test_gpt_oss(kind: str, experts: str, tmp_path: Path, new_team: NewPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits agree almost exactly in the first rows; later a few codes differ, and sometimes a chosen expert."""
    case, ids = gpt_oss_models.case_of("Q8_0", experts), ids_of(120)
    target = CpuTarget(open_target(case.write(tmp_path / "model.gguf", kind, experts)), new_team())
    if experts == "F32":  # the engine rounds them to Q8_0
        case = gpt_oss_models.case_of("Q8_0", "Q8_0")
    found, exact = engine_logits(target, ids), exact_logits(case, ids)
    round_as_the_engine_does(case.model, monkeypatch)
    same_rounding = exact_logits(case, ids)
    assert relative(found[:8], same_rounding[:8]) < 0.02
    assert relative(found, same_rounding) < 0.05
    assert relative(found, exact) < 0.12


@pytest.mark.parametrize(("architecture", "attention"), [("qwen35", (3,)), ("qwen35", (0, 2)), ("qwen35moe", (3,))])
def test_qwen35(
    architecture: str, attention: Sequence[int], tmp_path: Path, new_team: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits agree almost exactly in the first row; later a few codes differ, and the state keeps the difference.

    llama.cpp, which rounds activations too, reads the same file and is about as far from exact logits.
    """
    case, ids = qwen35_models.case_of(architecture, "Q8_0", attention), ids_of(120)
    path = case.write(tmp_path / "model.gguf", "Q8_0")
    found, exact = engine_logits(CpuTarget(open_target(path), new_team()), ids), exact_logits(case, ids)
    if attention == (3,):
        target = LlamaCppTarget(path, 128, 1, mode=DecodeMode(WIDE.flags, tuple(range(1, 14))))
        theirs = engine_logits(target, ids[:60])
        target.close()
        assert relative(theirs, exact[:60]) < 0.2
        assert relative(found[:60], exact[:60]) < 1.5 * relative(theirs, exact[:60])
    round_as_the_engine_does(case.model, monkeypatch)
    same_rounding = exact_logits(case, ids)
    assert relative(found[:1], same_rounding[:1]) < 1e-4
    assert relative(found, same_rounding) < 0.05
    assert relative(found, exact) < 0.15
