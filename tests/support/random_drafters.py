"""Drafters of random weights of every kind, in every format: z-lab's and speculators' safetensors, and GGUF."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights.gguf import read_header
from tests.support.gguf_writing import add_metadata, add_tensor, add_vocabulary, finish, rounded, shape_numbers

Weights = dict[str, NDArray[np.float32]]
CONVOLVED = {"conv_kernel": 3, "conv_group": 16, "selector_rank": 32, "selector_top_k": 7}
YARN = {"factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 1.0}
# Windows of bidirectional layers exceed the block: llama.cpp has no window towards later rows.
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding in part, causal by default": {"window": 6, "sliding": (True, False)},
    "sliding, causal by default": {"window": 6, "sliding": (True, True)},
    "sliding, bidirectional": {"window": 9, "sliding": (True, True), "causal": False},
    "causal everywhere": {"causal": True},
    "scaled embedding": {"embedding_scale": 2.5},
    "scaled and capped logits": {"logit_scale": 0.4, "softcap": 3.0},
    "from the anchor": {"from_anchor": True},
    "six taps": {"taps": (0, 1, 2, 3, 4, 2)},
    "eight taps": {"taps": (0, 1, 2, 3, 4, 0, 1, 2)},
    "own embedding and head": {"own_embedding": True, "own_head": True},
    "reduced vocabulary": {"own_head": True, "short": tuple(range(3, 400, 3))},
    "DSpark": {"markov_rank": 32, "from_anchor": True},
    "DSpark with confidence": {"markov_rank": 32, "has_confidence_head": True, "from_anchor": True},
    "DSpark behind the anchor": {"markov_rank": 32, "has_confidence_head": True},
    "DSpark, reduced vocabulary": {
        "markov_rank": 32,
        "has_confidence_head": True,
        "from_anchor": True,
        "own_head": True,
        "short": tuple(range(3, 400, 3)),
    },
    "DFlash 2": {"causal": False, "window": 9, "sliding": (True, True)} | CONVOLVED,
    "DFlash 2, scaled and capped logits": {"logit_scale": 0.4, "softcap": 3.0} | CONVOLVED,
}


def vocabulary_of(target: Path) -> int:
    return len(read_header(target).require("tokenizer.ggml.tokens", list))


def config_of(variant: str, vocabulary: int, **changes: Any) -> DFlashConfig:
    """Return two layers for a target of hidden size 64 and six layers."""
    shape = DecoderConfig(vocabulary, 64, 2, 2, 1, 32, 128, rope_theta=1e4, context_length=512)
    return replace(DFlashConfig(shape, 8, 5, (1, 3, 4)), **(VARIANTS[variant] | changes))


def shapes_of(config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    """Return every tensor's shape, by the names of z-lab, DeepSpec and speculators."""
    c, m = config.decoder, config
    h, q, kv = c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, len(m.taps) * h)}
    shapes |= {"hidden_norm.weight": (h,), "norm.weight": (h,)}
    for i in range(c.num_hidden_layers):
        p = f"layers.{i}."
        shapes |= {p + "input_layernorm.weight": (h,), p + "post_attention_layernorm.weight": (h,)}
        for name, n, k in (("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)):
            shapes[f"{p}self_attn.{name}_proj.weight"] = (n, k)
            if c.attention_bias:
                shapes[f"{p}self_attn.{name}_proj.bias"] = (n,)
        shapes |= {p + "self_attn.q_norm.weight": (c.head_dim,), p + "self_attn.k_norm.weight": (c.head_dim,)}
        for name, n, k in (("gate", c.intermediate_size, h), ("up", c.intermediate_size, h)):
            shapes[f"{p}mlp.{name}_proj.weight"] = (n, k)
        shapes[f"{p}mlp.down_proj.weight"] = (h, c.intermediate_size)
        for name in ("attention_conv", "mlp_conv") if m.conv_kernel else ():
            shapes[f"{p}{name}.base_kernel"] = (2, m.conv_kernel, h)
            shapes[f"{p}{name}.kernel_projection.weight"] = (2 * m.conv_kernel * h // m.conv_group, h)
    rows = len(m.short) or c.vocab_size
    if m.own_embedding:
        shapes["embed_tokens.weight"] = (c.vocab_size, h)
    if m.own_head:
        shapes["lm_head.weight"] = (rows, h)
    if m.markov_rank:
        shapes["markov_head.markov_w1.weight"] = (c.vocab_size, m.markov_rank)
        shapes["markov_head.markov_w2.weight"] = (rows, m.markov_rank)
    if m.has_confidence_head:
        shapes |= {"confidence_head.proj.weight": (1, h + m.markov_rank), "confidence_head.proj.bias": (1,)}
    if m.selector_rank:
        for name in ("predecessor", "successor"):
            shapes[f"candidate_selector.{name}_codebook"] = (c.vocab_size, m.selector_rank)
        shapes["candidate_selector.hidden_projection.weight"] = (m.selector_rank, h)
    return shapes


def random_weights(config: DFlashConfig) -> Weights:
    """Return matrices in steps that Q8_0 holds exactly, so that every format has the same numbers."""
    random = np.random.default_rng(0)
    weights: Weights = {}
    for name, shape in shapes_of(config).items():
        noise = random.standard_normal(shape).astype(np.float32)
        if name.endswith("base_kernel"):
            weights[name] = (0.2 * noise + (np.arange(shape[1]) == 0)[:, None]).astype(np.float32)
        elif len(shape) == 1:
            weights[name] = 0.1 * noise if name.endswith("bias") else 1 + 0.1 * noise
        else:
            weights[name] = rounded(noise * _size_of(name), "Q8_0")
    return weights


def _size_of(name: str) -> float:
    """Return the scale of a matrix: heads add about the logits' standard deviation, convolutions about half of it."""
    if "kernel_projection" in name:
        return 0.06
    if "codebook" in name or "hidden_projection" in name:
        return 0.15
    return 1.0 if "embed_tokens" in name else 0.2


# Safetensors


def write_zlab(folder: Path, config: DFlashConfig, weights: Weights, **changes: Any) -> Path:
    """Write z-lab's format, with DeepSpec's fields for DSpark."""
    c = config.decoder
    nested = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.taps),
        "input_embedding_scale": config.embedding_scale,
        "output_multiplier": config.logit_scale,
        "final_logit_softcapping": config.softcap or None,
    }
    document = {
        "architectures": ["DFlashDraftModel"],
        "block_size": config.block_size,
        "dflash_config": nested | _of_second(config),
        "vocab_size": c.vocab_size,
        "rope_theta": c.rope_theta,
        "sample_from_anchor": config.from_anchor,
        "is_causal": config.causal,
        "max_position_embeddings": c.context_length,
    }
    if config.markov_rank:
        document |= {"markov_rank": config.markov_rank, "enable_confidence_head": config.has_confidence_head}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document | _network(config) | changes))
    return _save(folder / "model.safetensors", config, weights)


def write_speculators(folder: Path, config: DFlashConfig, weights: Weights) -> Path:
    """Write the format of vLLM's speculators, which leaves out Qwen3's defaults."""
    c = config.decoder
    network = _network(config) | {"vocab_size": c.vocab_size, "model_type": "qwen3"}
    network |= {"max_position_embeddings": c.context_length}
    del network["rms_norm_eps"]
    document = {
        "speculators_model_type": config.kind,
        "transformer_layer_config": network,
        "draft_vocab_size": len(config.short) or c.vocab_size,
        "block_size": config.block_size,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in config.taps],
        "mask_token_id": config.mask_token_id,
        "sliding_window_non_causal": config.causal is False,
        "sample_from_anchor": config.from_anchor,
        "markov_rank": config.markov_rank,
        "enable_confidence_head": config.has_confidence_head,
        "confidence_head_with_markov": True,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document | _of_second(config)))
    return _save(folder / "model.safetensors", config, weights)


def _network(config: DFlashConfig) -> dict[str, Any]:
    c = config.decoder
    kinds = ["sliding_attention" if config.is_sliding(i) else "full_attention" for i in range(c.num_hidden_layers)]
    return {
        "num_hidden_layers": c.num_hidden_layers,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.rms_norm_eps,
        "attention_bias": c.attention_bias,
        "layer_types": kinds,
        "sliding_window": config.window,
        "use_sliding_window": config.window is not None,
    }


def _of_second(config: DFlashConfig) -> dict[str, int]:
    if not config.selector_rank:
        return {}
    return {
        "conv_kernel_size": config.conv_kernel,
        "conv_group_size": config.conv_group,
        "selector_rank": config.selector_rank,
        "selector_top_k": config.selector_top_k,
    }


def _save(path: Path, config: DFlashConfig, weights: Weights) -> Path:
    tensors: dict[str, NDArray[Any]] = dict(weights)
    if config.short:  # offset of a reduced vocabulary's token from its row
        ids = np.array(config.short)
        tensors["d2t"] = ids - np.arange(len(ids))
        tensors["t2d"] = np.isin(np.arange(config.decoder.vocab_size), ids)
    safetensors.numpy.save_file(tensors, path)
    return path


# GGUF

LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "attention_conv.kernel_projection": "attn_conv_proj",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
}
TOP = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}


def write_gguf(
    path: Path, config: DFlashConfig, weights: Weights, target: Path, quantization: str = "Q8_0", **changes: Any
) -> Path:
    """Write the GGUF as llama.cpp converts it, with the vocabulary of a target."""
    writer = gguf.GGUFWriter(path, "dflash")
    add_vocabulary(writer, target)
    writer.add_mask_token_id(config.mask_token_id)
    for key, value in (_metadata(config) | changes).items():
        add_metadata(writer, f"dflash.{key}", value)
    for name, values in weights.items():
        exact = values.ndim != 2 or "confidence" in name
        add_tensor(writer, _gguf_name(name), values, "F32" if exact else quantization)
    if config.short:
        writer.add_tensor("d2t", np.array(config.short, np.int64))
    finish(writer)
    return path


def _metadata(config: DFlashConfig) -> dict[str, Any]:
    c = config.decoder
    found: dict[str, Any] = shape_numbers(c, c.context_length, c.rope_theta) | {
        "block_size": config.block_size,
        "target_layers": [tap + 1 for tap in config.taps],
    }
    if config.window:
        found |= {"attention.sliding_window": config.window, "attention.sliding_window_pattern": list(config.sliding)}
    if config.causal is not None:
        found["attention.causal"] = config.causal
    if config.embedding_scale != 1:
        found["embedding_scale"] = config.embedding_scale
    if config.logit_scale != 1:
        found["logit_scale"] = config.logit_scale
    if config.softcap:
        found["final_logit_softcapping"] = config.softcap
    if config.from_anchor or config.markov_rank:
        found["sample_from_anchor"] = config.from_anchor
    if config.markov_rank:
        found["has_confidence_head"] = config.has_confidence_head
    return found | _of_second(config)


def _gguf_name(name: str) -> str:
    if name in TOP:
        return TOP[name]
    _, layer, rest = name.split(".", 2)
    if rest.endswith("base_kernel"):
        return f"blk.{layer}.{'attn' if rest.startswith('attention') else 'ffn'}_conv_base"
    stem, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{LAYER[stem]}.{kind}"
