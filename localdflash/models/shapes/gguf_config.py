"""The shape of a Qwen3, Qwen3-MoE or Llama GGUF from its metadata, and the names of its tensors. Imports no torch."""

import math

from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.weights import gguf
from localdflash.models.weights.gguf_limits import LARGEST_SIZE, MOST_LAYERS

ARCHITECTURES = ("qwen3", "qwen3moe", "llama")
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
        known = ", ".join(repr(name) for name in ARCHITECTURES)
        raise ModelError(f"{header.path}: only {known} models run here, not {kind!r}: use llama.cpp")
    _refuse(header)
    heads, kv_heads = size_of(header, "attention.head_count"), size_of(header, "attention.head_count_kv")
    if heads % kv_heads:
        raise ModelError(f"{header.path}: {heads} heads cannot share {kv_heads} key-value heads; convert it again")
    head_dim = _head_dim(header, heads)
    experts = size_of(header, "expert_count") if kind == "qwen3moe" else 0
    return DecoderConfig(
        vocab_size=header.tensors["token_embd.weight"].shape[0],
        hidden_size=size_of(header, "embedding_length"),
        num_hidden_layers=size_of(header, "block_count", MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=0 if experts else size_of(header, "feed_forward_length"),
        rope_theta=positive_of(header, "rope.freq_base"),
        rms_norm_eps=positive_of(header, "attention.layer_norm_rms_epsilon"),
        context_length=size_of(header, "context_length"),
        tie_word_embeddings="output.weight" not in header.tensors,
        qk_norm=kind != "llama",
        rope_factors=_rope_factors(header, head_dim),
        num_experts=experts,
        num_experts_per_tok=size_of(header, "expert_used_count", experts) if experts else 0,
        moe_intermediate_size=size_of(header, "expert_feed_forward_length") if experts else 0,
        norm_topk_prob=experts > 0,  # not in the metadata: llama.cpp always does for this architecture
    )


def _refuse(header: gguf.GGUFHeader) -> None:
    """Raise ModelError for what the decoder would silently get wrong."""
    kind = header.architecture
    if scales_rope(header):
        raise ModelError(f"{header.path}: scaled RoPE is not supported here: use llama.cpp")
    if kind == "llama" and header.metadata.get("llama.expert_count", 0):
        raise ModelError(f"{header.path}: a mixture of experts of 'llama' does not run here: use llama.cpp")
    if "token_embd.weight" not in header.tensors:
        raise ModelError(f"{header.path}: tensor token_embd.weight is missing; convert the model again")


def scales_rope(header: gguf.GGUFHeader) -> bool:
    """Return whether llama.cpp scales positions or RoPE angles. It takes a factor without a type for linear, and 0 for
    none.
    """

    def value(name: str, default: object) -> object:
        return header.metadata.get(f"{header.architecture}.rope.{name}", default)

    if value("scaling.attn_factor", 1.0) != 1.0:
        return True
    kind = value("scaling.type", "")
    if kind:
        return kind != "none"
    return value("scaling.factor", value("scale_linear", 0.0)) not in (0.0, 1.0)


def _head_dim(header: gguf.GGUFHeader, heads: int) -> int:
    kind = header.architecture
    if kind == "llama" and "llama.attention.key_length" not in header.metadata:
        head_dim = size_of(header, "embedding_length") // heads
    else:
        head_dim = size_of(header, "attention.key_length")
    if head_dim % 2 or header.metadata.get(f"{kind}.rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{header.path}: RoPE turns whole heads of even size only here: use llama.cpp")
    return head_dim


def _rope_factors(header: gguf.GGUFHeader, head_dim: int) -> tuple[float, ...]:
    if header.architecture != "llama" or ROPE_FACTORS not in header.tensors:
        return ()
    found = header.tensors[ROPE_FACTORS].shape
    if found != (head_dim // 2,):
        wanted = [head_dim // 2]
        raise ModelError(
            f"{header.path}: tensor {ROPE_FACTORS} has shape {list(found)}, not {wanted}; convert the model again"
        )
    factors = gguf.load_tensor(header, ROPE_FACTORS)
    if not bool((factors.isfinite() & (factors > 0)).all()):
        raise ModelError(f"{header.path}: tensor {ROPE_FACTORS} is not all positive; convert the model again")
    return tuple(factors.tolist())


def size_of(header: gguf.GGUFHeader, name: str, most: int = LARGEST_SIZE) -> int:
    """Return a number of things in the metadata of an architecture."""
    key = f"{header.architecture}.{name}"
    value = header.require(key, int)
    if not 1 <= value <= most:
        raise ModelError(f"{header.path}: {key} is {value}, expected 1 to {most}; convert the model again")
    return value


def positive_of(header: gguf.GGUFHeader, name: str) -> float:
    """Return a positive number in the metadata of an architecture."""
    key = f"{header.architecture}.{name}"
    value = header.require(key, float)
    if not 0.0 < value < math.inf:
        raise ModelError(f"{header.path}: {key} is {value}, expected a positive number; convert the model again")
    return value
