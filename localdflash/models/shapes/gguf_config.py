"""Reads the shape of a Qwen2, Qwen3, Qwen3-MoE or Llama GGUF from its metadata; names of its tensors."""

import math
from dataclasses import replace

from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.yarn import BETA_FAST, BETA_SLOW, yarn_factors, yarn_magnitude
from localdflash.models.weights import gguf
from localdflash.models.weights.gguf_limits import MAX_CONTEXT, MAX_LAYERS, MAX_SIZE

ARCHITECTURES = ("qwen3", "qwen3moe", "llama", "qwen2")
TOP_TENSORS = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EXPERT_TENSORS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"  # divisors of the RoPE frequencies, in files of Llama 3.1 and later


def decoder_config(header: gguf.GGUFHeader) -> DecoderConfig:
    """Return the shape of a GGUF's decoder; ModelError names what is missing or not supported."""
    kind = header.architecture
    if kind not in ARCHITECTURES:
        raise unsupported(header, *ARCHITECTURES)
    refuse_scaled_rope(header)
    if kind == "llama" and header.metadata.get("llama.expert_count", 0):
        raise ModelError(f"{header.path}: a mixture of experts of 'llama' is not supported here; use llama.cpp")
    config = common_config(header)
    check_whole_heads(header, config.head_dim)
    factors = _rope_factors(header, config.head_dim)
    config = replace(config, qk_norm=kind.startswith("qwen3"), qkv_bias=kind == "qwen2", rope_factors=factors)
    if kind == "qwen3moe":
        return with_experts(header, config)
    return replace(config, intermediate_size=size_of(header, "feed_forward_length"))


def common_config(header: gguf.GGUFHeader, vocab_size: int | None = None) -> DecoderConfig:
    """Return the shape without an MLP, from metadata of any architecture. Default of `vocab_size`: the embedding's."""
    heads, kv_heads = size_of(header, "attention.head_count"), size_of(header, "attention.head_count_kv")
    if heads % kv_heads:
        raise ModelError(f"{header.path}: {heads} heads cannot share {kv_heads} key-value heads; convert it again")
    kind = header.architecture
    if kind in ("llama", "qwen2") and f"{kind}.attention.key_length" not in header.metadata:
        head_dim = size_of(header, "embedding_length") // heads
    else:
        head_dim = size_of(header, "attention.key_length")
    if head_dim % 2:
        raise ModelError(f"{header.path}: RoPE of an odd head size ({head_dim}) is not supported here; use llama.cpp")
    return DecoderConfig(
        vocab_size=vocab_size or gguf.find(header, "token_embd.weight").shape[0],
        hidden_size=size_of(header, "embedding_length"),
        num_hidden_layers=count_layers(header),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=0,
        rope_theta=positive_of(header, "rope.freq_base"),
        rms_norm_eps=positive_of(header, "attention.layer_norm_rms_epsilon"),
        context_length=size_of(header, "context_length", MAX_CONTEXT),
        tie_word_embeddings="output.weight" not in header.tensors,
    )


def with_experts(header: gguf.GGUFHeader, config: DecoderConfig) -> DecoderConfig:
    """Return the shape with a mixture of experts."""
    experts = size_of(header, "expert_count")
    return replace(
        config,
        num_experts=experts,
        num_experts_per_tok=size_of(header, "expert_used_count", experts),
        moe_intermediate_size=size_of(header, "expert_feed_forward_length"),
        norm_topk_prob=True,  # not in the metadata; gpt-oss's softmax over the chosen experts equals it
    )


def unsupported(header: gguf.GGUFHeader, *known: str) -> ModelError:
    """Return the error for an architecture that only llama.cpp runs."""
    names = ", ".join(map(repr, known))
    return ModelError(f"{header.path}: only {names} models run here, not {header.architecture!r}; use llama.cpp")


def check_whole_heads(header: gguf.GGUFHeader, head_dim: int) -> None:
    """Raise ModelError if RoPE rotates only a part of each head."""
    if header.metadata.get(f"{header.architecture}.rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{header.path}: partial RoPE is not supported here; use llama.cpp")


def refuse_scaled_rope(header: gguf.GGUFHeader) -> None:
    """Raise ModelError if the metadata scales RoPE: by a type, or by a factor other than 0 or 1, as in llama.cpp."""

    def value(name: str, default: object) -> object:
        return header.metadata.get(f"{header.architecture}.rope.{name}", default)

    if kind := value("scaling.type", ""):
        is_scaled = kind != "none"
    else:
        is_scaled = value("scaling.factor", value("scale_linear", 0.0)) not in (0.0, 1.0)
    if is_scaled or value("scaling.attn_factor", 1.0) != 1.0:
        raise ModelError(f"{header.path}: scaled RoPE is not supported here; use llama.cpp")


def _rope_factors(header: gguf.GGUFHeader, head_dim: int) -> tuple[float, ...]:
    if header.architecture != "llama" or ROPE_FACTORS not in header.tensors:
        return ()
    shape = list(header.tensors[ROPE_FACTORS].shape)
    if shape != [head_dim // 2]:
        problem = f"tensor {ROPE_FACTORS} has shape {shape}, not {[head_dim // 2]}"
        raise ModelError(f"{header.path}: {problem}; convert the model again")
    factors = gguf.load_floats(header, ROPE_FACTORS)
    if not all(0.0 < factor < math.inf for factor in factors):
        raise ModelError(f"{header.path}: tensor {ROPE_FACTORS} is not all positive; convert the model again")
    return tuple(factors)


def size_of(header: gguf.GGUFHeader, name: str, max_size: int = MAX_SIZE) -> int:
    """Return a size in the metadata of the architecture; ModelError unless it is 1 to `max_size`."""
    key = f"{header.architecture}.{name}"
    value = header.require(key, int)
    if not 1 <= value <= max_size:
        raise ModelError(f"{header.path}: {key} is {value}, expected 1 to {max_size}; convert the model again")
    return value


def count_layers(header: gguf.GGUFHeader) -> int:
    """Return the number of transformer layers in a file, including those of multi-token prediction."""
    return size_of(header, "block_count", MAX_LAYERS)


def yarn_of(header: gguf.GGUFHeader, config: DecoderConfig, *, round_outwards: bool) -> DecoderConfig:
    """Return the shape with YaRN's divisors and magnitude if the metadata has YaRN; ModelError for other scaling."""
    kind = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    if kind == "none":
        return config
    if kind != "yarn":
        raise ModelError(f"{header.path}: RoPE scaling {str(kind)[:60]!r} is not supported here; use llama.cpp")
    factor = positive_of(header, "rope.scaling.factor")
    context = int(number(header, "rope.scaling.original_context_length", 0)) or config.context_length
    fast = number(header, "rope.scaling.yarn_beta_fast", BETA_FAST)
    slow = number(header, "rope.scaling.yarn_beta_slow", BETA_SLOW)
    divisors = yarn_factors(
        str(header.path), config.head_dim, config.rope_theta, factor, context, fast, slow, round_outwards=round_outwards
    )
    return replace(config, rope_factors=divisors, rope_magnitude=yarn_magnitude(factor))


def number(header: gguf.GGUFHeader, name: str, default: float) -> float:
    """Return a number in the metadata of the architecture, or the default."""
    key = f"{header.architecture}.{name}"
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"{header.path}: {key} is {str(value)[:60]!r}, expected a number; convert the model again")
    return value


def positive_of(header: gguf.GGUFHeader, name: str) -> float:
    """Return a positive number in the metadata of the architecture."""
    key = f"{header.architecture}.{name}"
    value = header.require(key, float)
    if not 0.0 < value < math.inf:
        raise ModelError(f"{header.path}: {key} is {value}, expected a positive number; convert the model again")
    return value
