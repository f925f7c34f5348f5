"""Small Qwen3.5 models of random weights, dense and mixtures, from Hugging Face, in files as llama.cpp writes them."""

from collections.abc import Iterator, Sequence
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

from tests.support.converted_models import Case
from tests.support.gpt_oss_models import rounded

VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, ROTARY, CONTEXT = 97, 64, 96, 4, 4, 2, 32, 8, 512
K_HEADS, V_HEADS, K_DIM, V_DIM, KERNEL = 2, 4, 32, 32, 4  # of the delta nets; llama.cpp wants K_DIM to be V_DIM
EXPERTS, CHOSEN, EXPERT, SHARED = 6, 3, 32, 64
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "linear_num_key_heads": K_HEADS,
    "linear_num_value_heads": V_HEADS,
    "linear_key_head_dim": K_DIM,
    "linear_value_head_dim": V_DIM,
    "linear_conv_kernel_dim": KERNEL,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": ROTARY / HEAD_DIM,
        "mrope_section": [2, 1, 1],
    },
}
NUMBERS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "context_length": CONTEXT,
    "embedding_length": HIDDEN,
    "block_count": LAYERS,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_count": ROTARY,
    "rope.dimension_sections": [2, 1, 1, 0],
    "rope.freq_base": 1e4,
    "ssm.conv_kernel": KERNEL,
    "ssm.state_size": K_DIM,
    "ssm.group_count": K_HEADS,
    "ssm.time_step_rank": V_HEADS,
    "ssm.inner_size": V_HEADS * V_DIM,
    "full_attention_interval": 4,
}
DENSE_NUMBERS = {"feed_forward_length": INNER}
MIXTURE_NUMBERS = {
    "expert_count": EXPERTS,
    "expert_used_count": CHOSEN,
    "expert_feed_forward_length": EXPERT,
    "expert_shared_feed_forward_length": SHARED,
}


def case_of(
    architecture: str, kind: str = "F32", attention: Sequence[int] = (LAYERS - 1,), layers: int = LAYERS
) -> Case:
    """A `qwen35` or `qwen35moe` whose weights survive quantization to a type unchanged; `attention`: layers that are no
    delta nets.
    """
    recurrent = [layer not in attention for layer in range(layers)]
    shape = SHAPE | {"layer_types": ["linear_attention" if net else "full_attention" for net in recurrent]}
    shape["num_hidden_layers"] = layers
    if architecture == "qwen35":
        model: Any = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape, intermediate_size=INNER))
    else:
        mixture = {"num_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": EXPERT}
        config = Qwen3_5MoeTextConfig(**shape, **mixture, shared_expert_intermediate_size=SHARED)
        model = Qwen3_5MoeForCausalLM(config)
    model = model.float().eval()
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
    numbers = NUMBERS | (DENSE_NUMBERS if architecture == "qwen35" else MIXTURE_NUMBERS)
    numbers |= {"attention.recurrent_layers": recurrent, "block_count": layers}
    return Case(model, architecture, dict(_converted(model, architecture)), numbers)


def _converted(model: Any, architecture: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(name, values): norms around 1, value heads sorted by their number within a key head."""
    arch = {"qwen35": gguf.MODEL_ARCH.QWEN35, "qwen35moe": gguf.MODEL_ARCH.QWEN35MOE}[architecture]
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    for key, parameter in model.named_parameters():
        values, name = parameter.detach(), key
        if key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
            values = values + 1
        if "linear_attn" in key:
            values = _sorted(key, values)
        if key.endswith("A_log"):
            values = -values.exp()
        if key.endswith("dt_bias"):
            name = key.replace("dt_bias", "dt_proj.bias")
        parts = {name: values}
        if key.endswith("experts.gate_up_proj"):
            gate, up = values.chunk(2, 1)
            parts = {key.replace("gate_up_proj", "gate_proj"): gate, key.replace("gate_up_proj", "up_proj"): up}
        for part, its in parts.items():
            yield named(names, part), (its.squeeze(1) if "conv1d" in key else its).contiguous().numpy()


def named(names: Any, key: str) -> str:
    """The name of a parameter in llama.cpp's files."""
    for end in (".weight", ".bias"):
        if key.endswith(end):
            return f"{names.get_name(key.removesuffix(end))}{end}"
    found = names.get_name(key)
    return str(found) if key.endswith("A_log") else f"{found}.weight"


def _sorted(key: str, values: Tensor) -> Tensor:
    """llama.cpp pairs value head h with key head h % K_HEADS; Hugging Face has those of one key head side by side."""

    def heads(x: Tensor) -> Tensor:
        grouped = x.reshape(K_HEADS, V_HEADS // K_HEADS, -1, *x.shape[1:])
        return grouped.transpose(0, 1).reshape(x.shape)

    keys = 2 * K_HEADS * K_DIM
    if "in_proj_qkv" in key or "conv1d" in key:
        return torch.cat((values[:keys], heads(values[keys:])))
    if "out_proj" in key:
        return heads(values.T).T
    return values if "norm" in key else heads(values)
