"""DFlash drafters from files: z-lab's safetensors folder (config.json beside it), or a `dflash` GGUF.

Every field of the formats is honoured or refused by name; a drafter that would run wrong does not load.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from localdflash.drafters.dflash_model import DFlash, DFlashConfig
from localdflash.errors import ModelError
from localdflash.targets.gguf_decoder import LAYER_TENSORS
from localdflash.targets.torch_decoder import DecoderConfig
from localdflash.weights import gguf, safetensors

TOP_TENSORS = {"fc": "fc", "enc.output_norm": "hidden_norm", "output_norm": "norm"}

REFUSED_JSON = {
    "rope_scaling": "scaled RoPE",
    "conv_kernel_size": "DFlash 2 (convolutions and selector)",
    "selector_rank": "DFlash 2 (convolutions and selector)",
    "speculators_model_type": "the speculators container",
    "draft_vocab_size": "a reduced vocabulary",
    "partial_rotary_factor": "partial RoPE",
    "attention_value_scale": "scaled attention values",
    "attention_sink_bias": "attention sinks",
}
REFUSED_GGUF = {
    "conv_kernel_size": "DFlash 2 (convolutions and selector)",
    "selector_rank": "DFlash 2 (convolutions and selector)",
    "rope.scaling.type": "scaled RoPE",
    "rope.dimension_count": "partial RoPE",
    "attention.value_scale": "scaled attention values",
    "hyper_connection.count": "hyper-connections",
}


def load(path: Path) -> DFlash:
    """The drafter in a GGUF file, or in a safetensors file with config.json beside it; float32, in eval mode."""
    if path.suffix == ".gguf":
        return _load_gguf(path)
    return _load_safetensors(path)


def _load_safetensors(path: Path) -> DFlash:
    config_path = path.with_name("config.json")
    try:
        fields = json.loads(config_path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{config_path}: cannot read the drafter's configuration: {error}") from None
    config = config_of_json(fields, str(config_path))
    return _filled(config, {k: v.float() for k, v in safetensors.load(path).items()}, str(path))


def config_of_json(fields: Mapping[str, Any], where: str) -> DFlashConfig:
    """A drafter's configuration from z-lab's config.json; both places of `block_size` are read."""
    nested = fields.get("dflash_config") or {}
    for name, meaning in REFUSED_JSON.items():
        if (fields.get(name) or nested.get(name)) not in (None, False, 0, {}):
            raise ModelError(f"{where}: {name} is set: drafters with {meaning} are not supported yet")

    def need(name: str) -> Any:
        value = nested.get(name, fields.get(name))
        if value is None:
            raise ModelError(f"{where}: {name} is missing")
        return value

    rope = fields.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise ModelError(f"{where}: rope_type {rope['rope_type']!r} is not supported yet")
    use_window = fields.get("use_sliding_window") or nested.get("use_swa")
    window = (nested.get("swa_window_size") or fields.get("sliding_window")) if use_window else None
    layers = int(need("num_hidden_layers"))
    types = fields.get("layer_types") or ["full_attention"] * layers
    everywhere = bool(nested.get("use_swa"))
    causal = fields.get("is_causal", nested.get("causal"))
    return DFlashConfig(
        decoder=DecoderConfig(
            vocab_size=int(need("vocab_size")),
            hidden_size=int(need("hidden_size")),
            num_hidden_layers=layers,
            num_attention_heads=int(need("num_attention_heads")),
            num_key_value_heads=int(need("num_key_value_heads")),
            head_dim=int(need("head_dim")),
            intermediate_size=int(need("intermediate_size")),
            rope_theta=float(rope.get("rope_theta") or need("rope_theta")),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            context_length=int(fields.get("max_position_embeddings", 4096)),
            attention_bias=bool(fields.get("attention_bias", False)),
        ),
        block_size=int(need("block_size")),
        mask_token_id=int(need("mask_token_id")),
        taps=tuple(int(t) for t in need("target_layer_ids")),
        window=None if window is None else int(window),
        sliding=tuple(everywhere or t == "sliding_attention" for t in types) if window else (),
        causal=None if causal is None else bool(causal),
        embedding_scale=float(nested.get("input_embedding_scale") or 1.0),
        logit_scale=float(nested.get("output_multiplier") or 1.0),
        softcap=float(nested.get("final_logit_softcapping") or 0.0),
    )


def config_of_gguf(header: gguf.GGUFHeader) -> DFlashConfig:
    """A drafter's configuration from a `dflash` GGUF's metadata."""
    where, fields = str(header.path), header.metadata
    if header.architecture != "dflash":
        raise ModelError(f"{where}: architecture {header.architecture!r} is no DFlash drafter (expected 'dflash')")
    for name, meaning in REFUSED_GGUF.items():
        if fields.get(f"dflash.{name}"):
            raise ModelError(f"{where}: dflash.{name} is set: drafters with {meaning} are not supported yet")

    def need(name: str) -> Any:
        value = fields.get(name if name.startswith("tokenizer") else f"dflash.{name}")
        if value is None:
            raise ModelError(f"{where}: {name} is missing from the metadata")
        return value

    def number(name: str, default: float) -> float:
        return float(fields.get(f"dflash.{name}", default))  # type: ignore[arg-type]

    tokens: Any = need("tokenizer.ggml.tokens")
    window = fields.get("dflash.attention.sliding_window")
    causal = fields.get("dflash.attention.causal")
    return DFlashConfig(
        decoder=DecoderConfig(
            vocab_size=len(tokens),
            hidden_size=int(need("embedding_length")),
            num_hidden_layers=int(need("block_count")),
            num_attention_heads=int(need("attention.head_count")),
            num_key_value_heads=int(need("attention.head_count_kv")),
            head_dim=int(need("attention.key_length")),
            intermediate_size=int(need("feed_forward_length")),
            rope_theta=number("rope.freq_base", 1e4),
            rms_norm_eps=float(need("attention.layer_norm_rms_epsilon")),
            context_length=int(need("context_length")),
            attention_bias="blk.0.attn_q.bias" in header.tensors,
        ),
        block_size=int(need("block_size")),
        mask_token_id=int(need("tokenizer.ggml.mask_token_id")),
        taps=tuple(int(layer) - 1 for layer in need("target_layers")),
        window=int(window) if window else None,  # type: ignore[call-overload]
        sliding=tuple(need("attention.sliding_window_pattern")) if window else (),
        causal=None if causal is None else bool(causal),
        embedding_scale=number("embedding_scale", 1.0),
        logit_scale=number("logit_scale", 1.0),
        softcap=number("final_logit_softcapping", 0.0),
    )


def _load_gguf(path: Path) -> DFlash:
    header = gguf.read_header(path)
    config = config_of_gguf(header)
    state = {}
    for name in header.tensors:
        stem, _, kind = name.rpartition(".")
        parts = stem.split(".")
        if stem in TOP_TENSORS:
            key = TOP_TENSORS[stem]
        elif parts[0] == "blk" and parts[2] in LAYER_TENSORS:
            key = f"layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}"
        else:
            raise ModelError(f"{path}: tensor {name} has no place in a DFlash drafter: not supported yet")
        state[f"{key}.{kind}"] = gguf.load_tensor(header, name)
    return _filled(config, state, str(path))


def _filled(config: DFlashConfig, state: dict[str, torch.Tensor], where: str) -> DFlash:
    with torch.device("meta"):
        model = DFlash(config)
    wanted = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    for name in sorted(wanted.keys() ^ state.keys()):
        raise ModelError(f"{where}: tensor {name} is {'missing' if name in wanted else 'unexpected'}")
    for name, shape in wanted.items():
        if tuple(state[name].shape) != shape:
            raise ModelError(f"{where}: tensor {name} has shape {list(state[name].shape)}, expected {list(shape)}")
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def check_fit(config: DFlashConfig, hidden_size: int, vocab_size: int, blocks: int, where: str) -> None:
    """ModelError naming what does not fit between a drafter and a target of this shape."""
    if config.decoder.hidden_size != hidden_size:
        raise ModelError(f"{where}: hidden size {config.decoder.hidden_size}, but the target's is {hidden_size}")
    if config.decoder.vocab_size != vocab_size:
        raise ModelError(f"{where}: vocabulary of {config.decoder.vocab_size}, but the target's has {vocab_size}")
    for tap in config.taps:
        if not 0 <= tap < blocks - 1:
            raise ModelError(f"{where}: taps block {tap}, but the target has blocks 0 to {blocks - 2} to tap")
    if not 0 <= config.mask_token_id < vocab_size:
        raise ModelError(f"{where}: mask token {config.mask_token_id} is outside the vocabulary of {vocab_size}")
