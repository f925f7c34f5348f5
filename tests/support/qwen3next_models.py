"""A small Qwen3-Next of random weights, from Hugging Face, in a file as llama.cpp converts it."""

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from tests.support.converted_models import Case
from tests.support.gpt_oss_models import rounded
from tests.support.qwen35_models import (
    CHOSEN,
    EXPERT,
    EXPERTS,
    HEAD_DIM,
    INNER,
    K_DIM,
    K_HEADS,
    LAYERS,
    MIXTURE_NUMBERS,
    NUMBERS,
    ROTARY,
    SHAPE,
    SHARED,
    V_DIM,
    V_HEADS,
    named,
)


def case_of(kind: str = "F32") -> Case:
    """A model whose weights survive quantization to a type unchanged; its last layer is no delta net."""
    recurrent = [True] * (LAYERS - 1) + [False]
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": ROTARY / HEAD_DIM}
    config = Qwen3NextConfig(
        **SHAPE
        | {
            "rope_parameters": rope,
            "layer_types": ["linear_attention" if net else "full_attention" for net in recurrent],
            "intermediate_size": INNER,
            "num_experts": EXPERTS,
            "num_experts_per_tok": CHOSEN,
            "moe_intermediate_size": EXPERT,
            "shared_expert_intermediate_size": SHARED,
        }
    )
    model: Any = Qwen3NextForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("linear_attn.norm.weight"):
                parameter.copy_(1 + 0.3 * noise)
            elif parameter.ndim == 1:  # norms, of which 1 is the neutral 0, and what decides how fast heads forget
                parameter.copy_(0.3 * noise - (1 if name.endswith("A_log") else 0))
            elif "conv1d" in name:
                parameter.copy_(0.4 * noise)
            else:
                is_exact = name.endswith(("mlp.gate.weight", "shared_expert_gate.weight"))
                parameter.copy_(0.2 * noise if is_exact else rounded(0.2 * noise, kind))
    numbers = {key: value for key, value in NUMBERS.items() if key != "rope.dimension_sections"}
    numbers |= MIXTURE_NUMBERS | {"attention.recurrent_layers": recurrent}
    return Case(model, "qwen3next", dict(_converted(model)), numbers)


def _converted(model: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(name, values): norms around 1; queries, keys, values and gates of all heads one after the other."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3NEXT, LAYERS)
    for key, parameter in model.named_parameters():
        values, parts = parameter.detach(), dict[str, Tensor]()
        if key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
            values = values + 1
        if key.endswith("A_log"):
            values = -values.exp()
        if key.endswith("in_proj_qkvz.weight"):
            layer = f"blk.{key.split('.')[2]}"
            mixed, gates = _by_kind(values)
            yield f"{layer}.attn_qkv.weight", mixed.contiguous().numpy()
            yield f"{layer}.attn_gate.weight", gates.contiguous().numpy()
            continue
        parts = {key.replace("dt_bias", "dt_proj.bias"): values}
        if key.endswith("experts.gate_up_proj"):
            gate, up = values.chunk(2, 1)
            parts = {key.replace("gate_up_proj", "gate_proj"): gate, key.replace("gate_up_proj", "up_proj"): up}
        for part, its in parts.items():
            yield named(names, part), (its.squeeze(1) if "conv1d" in key else its).contiguous().numpy()


def _by_kind(values: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of each key head: its query, its key, the values of its value heads, their gates."""
    wide = V_HEADS // K_HEADS * V_DIM
    heads = values.view(K_HEADS, 2 * K_DIM + 2 * wide, -1)
    query, key, value, gate = (part.flatten(0, 1) for part in torch.split(heads, [K_DIM, K_DIM, wide, wide], 1))
    return torch.cat((query, key, value)), gate
