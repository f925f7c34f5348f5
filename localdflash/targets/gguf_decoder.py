"""A Qwen3, Qwen3-MoE or Llama GGUF as a torch `Decoder`: weights dequantized to float32, shape from the metadata."""

import math
from pathlib import Path

import torch
from torch import Tensor

from localdflash.errors import ModelError
from localdflash.targets.decoder_config import DecoderConfig
from localdflash.targets.torch_decoder import Decoder
from localdflash.weights import gguf

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
LARGEST_SIZE, MOST_LAYERS = 1 << 20, 1000  # far above any model


def state_name(tensor: str) -> str | None:
    """The state-dict name of a GGUF tensor, None where a decoder has no place for it."""
    stem, _, kind = tensor.rpartition(".")
    if stem in TOP_TENSORS:
        return f"{TOP_TENSORS[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) != 3 or parts[0] != "blk":
        return None
    ours = LAYER_TENSORS.get(parts[2]) or EXPERT_TENSORS.get(parts[2])
    return ours and f"layers.{parts[1]}.{ours}.{kind}"


def rotate_half_order(heads: int, head_dim: int) -> Tensor:
    """Where the rows of a rotate-half q or k lie in a `llama` file: int64 [heads * head_dim], `file[order]` is ours.

    llama.cpp turns neighbours 2i and 2i + 1 of a Llama head together; rotate-half turns i and i + head_dim / 2.
    """
    return torch.arange(heads * head_dim).view(heads, head_dim // 2, 2).transpose(1, 2).flatten()


def decoder_config(header: gguf.GGUFHeader) -> DecoderConfig:
    """The shape of a GGUF's decoder; ModelError names what is missing or not supported."""
    kind = header.architecture
    if kind not in ARCHITECTURES:
        known = ", ".join(repr(name) for name in ARCHITECTURES)
        raise ModelError(f"{header.path}: the torch backend runs {known} models, not {kind!r}: use llama.cpp")
    _refuse(header)
    heads, kv_heads = _size(header, "attention.head_count"), _size(header, "attention.head_count_kv")
    if heads % kv_heads:
        raise ModelError(f"{header.path}: {heads} heads cannot share {kv_heads} key-value heads; convert it again")
    head_dim = _head_dim(header, heads)
    experts = _size(header, "expert_count") if kind == "qwen3moe" else 0
    return DecoderConfig(
        vocab_size=header.tensors["token_embd.weight"].shape[0],
        hidden_size=_size(header, "embedding_length"),
        num_hidden_layers=_size(header, "block_count", MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=0 if experts else _size(header, "feed_forward_length"),
        rope_theta=_positive(header, "rope.freq_base"),
        rms_norm_eps=_positive(header, "attention.layer_norm_rms_epsilon"),
        context_length=_size(header, "context_length"),
        tie_word_embeddings="output.weight" not in header.tensors,
        qk_norm=kind != "llama",
        rope_factors=_rope_factors(header, head_dim),
        num_experts=experts,
        num_experts_per_tok=_size(header, "expert_used_count", experts) if experts else 0,
        moe_intermediate_size=_size(header, "expert_feed_forward_length") if experts else 0,
        norm_topk_prob=experts > 0,  # not in the metadata: llama.cpp always does for this architecture
    )


def _refuse(header: gguf.GGUFHeader) -> None:
    """ModelError for what the decoder would silently get wrong."""
    kind = header.architecture
    if header.metadata.get(f"{kind}.rope.scaling.type", "none") != "none":
        raise ModelError(f"{header.path}: the torch backend does not know scaled RoPE: use llama.cpp")
    if kind == "llama" and header.metadata.get("llama.expert_count", 0):
        raise ModelError(f"{header.path}: the torch backend knows no 'llama' mixture of experts: use llama.cpp")
    if "token_embd.weight" not in header.tensors:
        raise ModelError(f"{header.path}: tensor token_embd.weight is missing; convert the model again")


def _head_dim(header: gguf.GGUFHeader, heads: int) -> int:
    kind = header.architecture
    if kind == "llama" and "llama.attention.key_length" not in header.metadata:
        head_dim = _size(header, "embedding_length") // heads
    else:
        head_dim = _size(header, "attention.key_length")
    if head_dim % 2 or header.metadata.get(f"{kind}.rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{header.path}: the torch backend rotates whole heads of even size only: use llama.cpp")
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


def _size(header: gguf.GGUFHeader, name: str, most: int = LARGEST_SIZE) -> int:
    key = f"{header.architecture}.{name}"
    value = header.require(key, int)
    if not 1 <= value <= most:
        raise ModelError(f"{header.path}: {key} is {value}, expected 1 to {most}; convert the model again")
    return value


def _positive(header: gguf.GGUFHeader, name: str) -> float:
    key = f"{header.architecture}.{name}"
    value = header.require(key, float)
    if not 0.0 < value < math.inf:
        raise ModelError(f"{header.path}: {key} is {value}, expected a positive number; convert the model again")
    return value


def load_decoder(path: Path) -> Decoder:
    """The model in a GGUF, float32, in eval mode; ModelError names the first tensor that does not fit."""
    header = gguf.read_header(path)
    config = decoder_config(header)
    with torch.device("meta"):
        model = Decoder(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    state = {}
    for name, info in header.tensors.items():
        if name == ROPE_FACTORS and config.rope_factors:
            continue
        ours = state_name(name)
        if ours not in shapes:
            raise ModelError(f"{path}: tensor {name} has no place in a {header.architecture} decoder: use llama.cpp")
        if info.shape != shapes[ours]:
            found, wanted = list(info.shape), list(shapes[ours])
            raise ModelError(f"{path}: tensor {name} has shape {found}, not {wanted}; convert the model again")
        state[ours] = _load(header, name, config)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["embed_tokens.weight"]
    for name in shapes:
        if name not in state:
            raise ModelError(f"{path}: no tensor for {name}; download or convert the model again")
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def _load(header: gguf.GGUFHeader, name: str, config: DecoderConfig) -> Tensor:
    """A tensor in float32, the rows of a Llama's q and k in rotate-half order."""
    values = gguf.load_tensor(header, name)
    if header.architecture != "llama" or not name.endswith((".attn_q.weight", ".attn_k.weight")):
        return values
    return values[rotate_half_order(len(values) // config.head_dim, config.head_dim)]
