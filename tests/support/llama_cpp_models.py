"""Small Mellum, Laguna, LFM2 and LFM2-MoE models of Hugging Face with random weights, and their GGUF files."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    LagunaConfig,
    LagunaForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    MellumConfig,
    MellumForCausalLM,
)

from tests.support.converted_models import (
    CHOSEN,
    EXPERTS,
    HEAD_DIM,
    INNER,
    Case,
    hugging_face_shape,
    numbers_of,
    rounded_tensor,
)
from tests.support.gguf_writing import expert_halves

LAYERS, WINDOW, SHARED, SCALE, CACHE = 4, 24, 64, 2.5, 3
SHAPE = hugging_face_shape(LAYERS, 512, 1e-5)
MIXTURE: dict[str, Any] = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": INNER,
}
SLIDES = [layer % 4 != 0 for layer in range(LAYERS)]
WINDOWS: dict[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention" if slides else "full_attention" for slides in SLIDES],
    "tie_word_embeddings": False,
    "intermediate_size": 96,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
WINDOW_NUMBERS: dict[str, Any] = {
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": SLIDES,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
HEADS_BY_LAYER, ROTARY = [4, 6, 6, 6], HEAD_DIM // 2  # of Laguna; rotated part of a head in layers without a window
SIGMOID = 2  # llama.cpp's number of this routing
HAS_ATTENTION = [layer == LAYERS - 1 for layer in range(LAYERS)]  # of LFM2; other layers are short convolutions
LFM2: dict[str, Any] = SHAPE | {
    "num_attention_heads": 2,  # llama.cpp wants heads of hidden size / number of heads
    "num_key_value_heads": 1,
    "norm_eps": 1e-5,
    "conv_L_cache": CACHE,
    "layer_types": ["full_attention" if attends else "conv" for attends in HAS_ATTENTION],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "intermediate_size": 96,
}
LFM2_NUMBERS: dict[str, Any] = {
    "attention.head_count_kv": [1 if attends else 0 for attends in HAS_ATTENTION],
    "shortconv.l_cache": CACHE,
}
NAMES = {  # of Hugging Face -> of llama.cpp's files; the package `gguf` lacks some of these architectures
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "ffn_norm": "ffn_norm",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"self_attn.{part}": "attn_output" for part in ("o_proj", "out_proj")},
    **{f"self_attn.{part}_{norm}": f"attn_{part}_norm" for part in "qk" for norm in ("norm", "layernorm")},
    "self_attn.g_proj": "attn_gate",
    **{f"conv.{part}": f"shortconv.{part}" for part in ("conv", "in_proj", "out_proj")},
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    **{
        f"{mlp}.experts.{part}_proj": f"ffn_{part}_exps"
        for mlp in ("mlp", "feed_forward")
        for part in ("gate", "up", "down")
    },
    **{f"{mlp}.gate": "ffn_gate_inp" for mlp in ("mlp", "feed_forward")},
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
}


def case_of(architecture: str, kind: str = "F32") -> Case:
    """Return a model whose weights survive quantization to `kind` unchanged."""
    model, more = _build(architecture)
    model = model.float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, values in model.state_dict().items():
            noise = torch.randn(values.shape, generator=generator)
            if name.endswith(("norm.weight", "layernorm.weight")):
                values.copy_(1 + 0.3 * noise)
            elif values.ndim == 1:  # added to the scores of experts
                values.copy_(0.2 * noise)
            elif _is_exact(name):
                values.copy_(0.4 * noise)
            else:
                values.copy_(rounded_tensor(0.2 * noise, kind))
    return Case(model, architecture, dict(_converted(model)), numbers_of(model.config) | more)


def _build(architecture: str) -> tuple[Any, dict[str, Any]]:
    """Return a model and the metadata that only its architecture has."""
    plain = {"rope_type": "default", "rope_theta": 1e4}
    match architecture:
        case "mellum":
            rope = {"full_attention": YARN, "sliding_attention": plain}
            return MellumForCausalLM(MellumConfig(**SHAPE, **WINDOWS, **MIXTURE, rope_parameters=rope)), WINDOW_NUMBERS
        case "laguna":
            rope = {
                "full_attention": YARN | {"partial_rotary_factor": ROTARY / HEAD_DIM},
                "sliding_attention": plain | {"rope_theta": 5e3, "partial_rotary_factor": 1.0},
            }
            config = LagunaConfig(
                **SHAPE,
                **WINDOWS,
                **MIXTURE,
                rope_parameters=rope,
                gating=True,
                num_attention_heads_per_layer=HEADS_BY_LAYER,
                shared_expert_intermediate_size=SHARED,
                moe_routed_scaling_factor=SCALE,
            )
            return LagunaForCausalLM(config), WINDOW_NUMBERS | {
                "attention.head_count": HEADS_BY_LAYER,
                "rope.dimension_count": ROTARY,
                "rope.dimension_count_swa": HEAD_DIM,
                "rope.freq_base_swa": 5e3,
                "leading_dense_block_count": 1,
                "expert_shared_feed_forward_length": SHARED,
                "expert_weights_scale": SCALE,
                "expert_weights_norm": True,
                "expert_gating_func": SIGMOID,
            }
        case "lfm2":
            return Lfm2ForCausalLM(Lfm2Config(**LFM2, block_auto_adjust_ff_dim=False)), LFM2_NUMBERS
        case _:
            return Lfm2MoeForCausalLM(Lfm2MoeConfig(**LFM2, **MIXTURE, num_dense_layers=1)), LFM2_NUMBERS | {
                "leading_dense_block_count": 1,
                "expert_gating_func": SIGMOID,
            }


def _is_exact(name: str) -> bool:
    """Return whether a tensor is not quantized: a router or a convolution."""
    return name.endswith(".gate.weight") or "conv.conv" in name


def _converted(model: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield (name, values) as llama.cpp's converter writes them."""
    for key, values in model.state_dict().items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        layer, stem = "", key
        if key.startswith("model.layers."):
            number, _, stem = key.removeprefix("model.layers.").partition(".")
            layer = f"blk.{number}."
        for part, its in expert_halves(stem, values):
            if part.endswith(("e_score_correction_bias", "expert_bias")):
                name = "exp_probs_b.bias"
            else:
                name = f"{NAMES[part.removesuffix('.weight')]}.weight"
            yield f"{layer}{name}", (its.squeeze(1) if "conv.conv" in part else its).contiguous().numpy()
