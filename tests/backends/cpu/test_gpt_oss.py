"""gpt-oss on the CPU engine: sinks, windows, biases, YaRN and its experts, against Hugging Face's model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.gpt_oss import modeling_gpt_oss

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.engine.draft import Draft
from localdflash.engine.pair import Target
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import relative, rounded
from tests.support.converted_models import Case, ids_of
from tests.support.gpt_oss_models import case_of
from tests.support.llama_ways import WIDE

pytestmark = needs_library
NewTeam = Callable[..., ThreadPool]
KINDS = (("F32", "F32"), ("Q8_0", "MXFP4"))


def logits_of(target: Target, ids: Sequence[int]) -> Tensor:
    """Of a whole sequence, in verifies of all widths in turn."""
    found, width = [], 1
    while ids:
        rows, ids = ids[:width], ids[width:]
        seen = target.verify(rows[0], Draft("test", rows[1:], [1.0] * (len(rows) - 1)))
        found.append(torch.from_numpy(seen.logits.copy()))
        target.keep(len(rows))
        width = width % 13 + 1
    return torch.cat(found)


@torch.inference_mode()
def wanted_of(case: Case, ids: Sequence[int]) -> Tensor:
    logits: Tensor = case.model(torch.tensor([list(ids)])).logits[0]
    return logits


def round_as_the_engine_does(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of products in 8 bits, keys and values in float16."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _module, inputs: (rounded(inputs[0]),))
        if isinstance(module, modeling_gpt_oss.GptOssExperts):
            monkeypatch.setattr(module, "forward", _RoundedExperts(module))
    exact = modeling_gpt_oss.eager_attention_forward

    def halved(module: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **others: Any) -> Any:
        return exact(module, q, k.half().float(), v.half().float(), *rest, **others)

    monkeypatch.setattr(modeling_gpt_oss, "eager_attention_forward", halved)


class _RoundedExperts:
    def __init__(self, experts: Any) -> None:
        self.experts = experts

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        e, out = self.experts, torch.zeros_like(x)
        for row, (experts, shares) in enumerate(zip(chosen.tolist(), weights, strict=True)):
            for expert, share in zip(experts, shares, strict=True):
                raised = F.linear(rounded(x[row]), e.gate_up_proj[expert].T, e.gate_up_proj_bias[expert])
                inner = rounded(e._apply_gate(raised))
                out[row] += share * F.linear(inner, e.down_proj[expert].T, e.down_proj_bias[expert])
        return out


@pytest.mark.parametrize(("kind", "experts"), KINDS)
def test_logits_are_those_of_hugging_face_with_rounded_activations(
    kind: str, experts: str, tmp_path: Path, new_team: NewTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bits in the first rows; later a rounding tips over now and then, and an expert with it."""
    case, ids = case_of("Q8_0", experts), ids_of(120)
    target = CpuTarget(open_target(case.write(tmp_path / "model.gguf", kind, experts)), new_team())
    if experts == "F32":  # the engine rounds them to Q8_0
        case = case_of("Q8_0", "Q8_0")
    found, exact = logits_of(target, ids), wanted_of(case, ids)
    round_as_the_engine_does(case.model, monkeypatch)
    same_rounding = wanted_of(case, ids)
    assert relative(found[:8], same_rounding[:8]) < 0.02
    assert relative(found, same_rounding) < 0.05
    assert relative(found, exact) < 0.12


def test_logits_are_near_those_of_llama_cpp(tmp_path: Path, new_team: NewTeam) -> None:
    """It rounds YaRN's frequencies to whole ones: where that changes nothing, the same model."""
    case, ids = case_of("Q8_0", "MXFP4"), ids_of(60)
    del case.numbers["rope.scaling.yarn_beta_fast"], case.numbers["rope.scaling.yarn_beta_slow"]
    case.numbers |= {"rope.freq_base": 10350.0, "rope.scaling.original_context_length": 1138}  # 3.0000 and 8.998
    path = case.write(tmp_path / "model.gguf", "Q8_0", "MXFP4")
    found = logits_of(CpuTarget(open_target(path), new_team()), ids)
    theirs = LlamaCppTarget(path, 128, 1, way=WIDE)
    wanted = logits_of(theirs, ids)
    theirs.close()
    assert relative(found, wanted) < 0.12
