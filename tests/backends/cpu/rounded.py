"""Oracle of the CPU engine in torch: the reference decoder with activations and cache rounded as the engine does.

Weights are the file's; every product sees its input in groups of 32 as 8-bit codes times a scale, K and V are
float16, the rest is float32. A difference in a last bit may change a code in the engine, so results differ slightly.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localdflash.backends.reference.decoder import Decoder, Experts
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.engine.pair import Target
from tests.support.converted_models import Case
from tests.support.lossless import verify

GROUP = 32


def rounded(x: Tensor) -> Tensor:
    """Quantize groups of 32 numbers to codes of -127 to 127 with one scale, and dequantize them."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    codes = (groups * torch.where(largest > 0, 127 / largest, 0)).round()
    return (codes * (largest / 127)).reshape(x.shape)


def round_inputs(model: Decoder | DFlash) -> None:
    """Round the input rows of every product of a model, except router and confidence head."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith(("mlp.gate", "confidence_head.proj")):
            module.register_forward_pre_hook(lambda _module, inputs: (rounded(inputs[0]),))
        if isinstance(module, Experts):
            module.forward = _RoundedExperts(module)  # type: ignore[method-assign]


class _RoundedExperts:
    def __init__(self, experts: Experts) -> None:
        self.experts = experts

    def __call__(self, x: Tensor, expert: int) -> Tensor:
        e = self.experts
        x = rounded(x)
        inner = F.silu(F.linear(x, e.gate_proj.weight[expert])) * F.linear(x, e.up_proj.weight[expert])
        return F.linear(rounded(inner), e.down_proj.weight[expert])


def causal_half(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention over K and V in float16."""
    return F.scaled_dot_product_attention(q, k.half().float(), v.half().float(), is_causal=True, enable_gqa=True)


@torch.inference_mode()
def logits_of(model: Decoder, ids: Sequence[int], taps: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Return logits [T, V] and taps [T, n_taps * H] of a whole sequence."""
    hidden, tapped = model(torch.tensor([list(ids)]), torch.arange(len(ids)), causal_half, taps)
    return model.logits(hidden)[0], torch.cat(tapped, -1)[0] if tapped else torch.empty(len(ids), 0)


def relative(actual: Tensor, expected: Tensor) -> float:
    """Return the RMS of the difference divided by the RMS of `wanted`."""
    return float((actual - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt())


def engine_logits(target: Target, ids: Sequence[int]) -> Tensor:
    """Return logits of a whole sequence, in verify batches of all widths."""
    rows, width = list[Any](), 1
    while ids:
        rows += verify(target, ids[:width])
        target.keep(min(width, len(ids)))
        ids, width = ids[width:], width % 13 + 1
    return torch.from_numpy(np.stack([row[0] for row in rows]))


@torch.inference_mode()
def exact_logits(case: Case, ids: Sequence[int]) -> Tensor:
    """Return logits of Hugging Face's model."""
    logits: Tensor = case.model(torch.tensor([list(ids)])).logits[0]
    return logits


def halved_attention(exact: Any) -> Any:
    """Wrap Hugging Face's eager attention so that K and V are rounded to float16."""

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **others: Any) -> Any:
        return exact(module, q, k.half().float(), v.half().float(), *rest, **others)

    return attend


def rounded_experts(expert: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a mixture's forward, made of `expert`'s output for a row."""

    def forward(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for row, (experts, shares) in enumerate(zip(chosen.tolist(), weights, strict=True)):
            for index, share in zip(experts, shares, strict=True):
                out[row] += share * expert(rounded(x[row]), index)
        return out

    return forward
