"""Small Qwen3.5 and Qwen3-Next models of Hugging Face with random weights, and their GGUF files."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

from tests.support.converted_models import HEAD_DIM, Case, hugging_face_shape, numbers_of, rounded_tensor
from tests.support.gguf_writing import expert_halves, names_of, tensor_name

INNER, LAYERS, ROTARY = 96, 4, 8
K_HEADS, V_HEADS, K_DIM, V_DIM, KERNEL = 2, 4, 32, 32, 4  # of the delta nets; llama.cpp wants K_DIM to be V_DIM
EXPERTS, CHOSEN, EXPERT, SHARED = 6, 3, 32, 64
SHAPE: dict[str, Any] = hugging_face_shape(LAYERS, 512, 1e-6) | {
    "linear_num_key_heads": K_HEADS,
    "linear_num_value_heads": V_HEADS,
    "linear_key_head_dim": K_DIM,
    "linear_value_head_dim": V_DIM,
    "linear_conv_kernel_dim": KERNEL,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": ROTARY / HEAD_DIM,
        "mrope_section": [2, 1, 1],
    },
}
ROPE = ("rope_type", "rope_theta", "partial_rotary_factor")  # of Qwen3-Next
NUMBERS: dict[str, Any] = {
    "rope.dimension_count": ROTARY,
    "rope.dimension_sections": [2, 1, 1, 0],
    "ssm.conv_kernel": KERNEL,
    "ssm.state_size": K_DIM,
    "ssm.group_count": K_HEADS,
    "ssm.time_step_rank": V_HEADS,
    "ssm.inner_size": V_HEADS * V_DIM,
    "full_attention_interval": 4,
}
MIXTURE = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": EXPERT,
    "shared_expert_intermediate_size": SHARED,
}


def case_of(
    architecture: str, kind: str = "F32", attention: Sequence[int] = (LAYERS - 1,), layers: int = LAYERS
) -> Case:
    """Return a `qwen35`, `qwen35moe` or `qwen3next` whose weights survive quantization to `kind` unchanged.

    `attention`: the layers that are not delta nets.
    """
    recurrent = [layer not in attention for layer in range(layers)]
    shape = SHAPE | {"layer_types": ["linear_attention" if net else "full_attention" for net in recurrent]}
    shape["num_hidden_layers"] = layers
    more = NUMBERS | {"expert_shared_feed_forward_length": SHARED}
    match architecture:
        case "qwen35":
            model: Any = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape, intermediate_size=INNER))
            more = NUMBERS
        case "qwen35moe":
            model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**shape, **MIXTURE))
        case _:
            shape["rope_parameters"] = {key: SHAPE["rope_parameters"][key] for key in ROPE}
            model = Qwen3NextForCausalLM(Qwen3NextConfig(**shape, **MIXTURE, intermediate_size=INNER))
            del more["rope.dimension_sections"]
    model = model.float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("linear_attn.norm.weight"):
                parameter.copy_(1 + 0.3 * noise)
            elif parameter.ndim == 1:  # norm weights stored minus 1, and the decay parameters
                parameter.copy_(0.3 * noise - (1 if name.endswith("A_log") else 0))
            elif "conv1d" in name:
                parameter.copy_(0.4 * noise)
            else:
                is_exact = name.endswith(("mlp.gate.weight", "shared_expert_gate.weight"))
                parameter.copy_(0.2 * noise if is_exact else rounded_tensor(0.2 * noise, kind))
    numbers = numbers_of(model.config) | more | {"attention.recurrent_layers": recurrent}
    if architecture != "qwen35":
        del numbers["feed_forward_length"]
    return Case(model, architecture, dict(_converted(model, architecture)), numbers)


def _converted(model: Any, architecture: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield (name, values): norms around 1, the heads in llama.cpp's order."""
    names = names_of(architecture, model.config.num_hidden_layers)
    for key, parameter in model.named_parameters():
        values = parameter.detach()
        if key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
            values = values + 1
        if key.endswith("A_log"):
            values = -values.exp()
        if key.endswith("in_proj_qkvz.weight"):
            layer = f"blk.{key.split('.')[2]}"
            for part, its in zip(("qkv", "gate"), _by_kind(values), strict=True):
                yield f"{layer}.attn_{part}.weight", its.contiguous().numpy()
            continue
        if "linear_attn" in key and architecture != "qwen3next":
            values = _sorted(key, values)
        for part, its in expert_halves(key.replace("dt_bias", "dt_proj.bias"), values):
            yield tensor_name(names, part), (its.squeeze(1) if "conv1d" in key else its).contiguous().numpy()


def _sorted(key: str, values: Tensor) -> Tensor:
    """Reorder value heads: llama.cpp pairs head h with key head h % K_HEADS, Hugging Face keeps them grouped."""

    def heads(x: Tensor) -> Tensor:
        grouped = x.reshape(K_HEADS, V_HEADS // K_HEADS, -1, *x.shape[1:])
        return grouped.transpose(0, 1).reshape(x.shape)

    keys = 2 * K_HEADS * K_DIM
    if "in_proj_qkv" in key or "conv1d" in key:
        return torch.cat((values[:keys], heads(values[keys:])))
    if "out_proj" in key:
        return heads(values.T).T
    return values if "norm" in key else heads(values)


def _by_kind(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split the rows of key heads into queries, K and V, and the gates."""
    wide = V_HEADS // K_HEADS * V_DIM
    heads = values.view(K_HEADS, 2 * K_DIM + 2 * wide, -1)
    query, key, value, gate = (part.flatten(0, 1) for part in torch.split(heads, [K_DIM, K_DIM, wide, wide], 1))
    return torch.cat((query, key, value)), gate
