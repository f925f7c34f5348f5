"""gpt-oss on the CPU engine: sinks, windows, biases, YaRN and its experts, against Hugging Face's model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.gpt_oss import modeling_gpt_oss

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
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
from tests.support.gpt_oss_models import case_of
from tests.support.llama_ways import WIDE

pytestmark = needs_library
NewPool = Callable[..., ThreadPool]


def round_as_the_engine_does(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round inputs of products to 8 bits, keys and values to float16."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _module, inputs: (rounded(inputs[0]),))
        if isinstance(module, modeling_gpt_oss.GptOssExperts):
            monkeypatch.setattr(module, "forward", rounded_experts(_expert_of(module)))
    exact = modeling_gpt_oss.eager_attention_forward
    monkeypatch.setattr(modeling_gpt_oss, "eager_attention_forward", halved_attention(exact))


def _expert_of(e: Any) -> Callable[[Tensor, int], Tensor]:
    def expert(x: Tensor, index: int) -> Tensor:
        raised = F.linear(x, e.gate_up_proj[index].T, e.gate_up_proj_bias[index])
        return F.linear(rounded(e._apply_gate(raised)), e.down_proj[index].T, e.down_proj_bias[index])

    return expert


@pytest.mark.parametrize(("kind", "experts"), [("F32", "F32"), ("Q8_0", "MXFP4")])
def test_logits_are_those_of_hugging_face_with_rounded_activations(
    kind: str, experts: str, tmp_path: Path, new_team: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bits in the first rows; later a rounding tips over now and then, and an expert with it."""
    case, ids = case_of("Q8_0", experts), ids_of(120)
    target = CpuTarget(open_target(case.write(tmp_path / "model.gguf", kind, experts)), new_team())
    if experts == "F32":  # the engine rounds them to Q8_0
        case = case_of("Q8_0", "Q8_0")
    found, exact = engine_logits(target, ids), exact_logits(case, ids)
    round_as_the_engine_does(case.model, monkeypatch)
    same_rounding = exact_logits(case, ids)
    assert relative(found[:8], same_rounding[:8]) < 0.02
    assert relative(found, same_rounding) < 0.05
    assert relative(found, exact) < 0.12


def test_logits_are_near_those_of_llama_cpp(tmp_path: Path, new_team: NewPool) -> None:
    """It rounds YaRN's frequencies to whole ones: where that changes nothing, the same model."""
    case, ids = case_of("Q8_0", "MXFP4"), ids_of(60)
    del case.numbers["rope.scaling.yarn_beta_fast"], case.numbers["rope.scaling.yarn_beta_slow"]
    case.numbers |= {"rope.freq_base": 10350.0, "rope.scaling.original_context_length": 1138}  # 3.0000 and 8.998
    path = case.write(tmp_path / "model.gguf", "Q8_0", "MXFP4")
    found = engine_logits(CpuTarget(open_target(path), new_team()), ids)
    theirs = LlamaCppTarget(path, 128, 1, way=WIDE)
    wanted = engine_logits(theirs, ids)
    theirs.close()
    assert relative(found, wanted) < 0.12
