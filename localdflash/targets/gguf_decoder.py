"""A Qwen3 GGUF as a torch `Decoder`: weights dequantized to float32, shape read from the metadata."""

import math
from pathlib import Path

import torch

from localdflash.errors import ModelError
from localdflash.targets.decoder_config import DecoderConfig
from localdflash.targets.torch_decoder import Decoder
from localdflash.weights import gguf

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
LARGEST_SIZE, MOST_LAYERS = 1 << 20, 1000  # far above any model


def state_name(tensor: str) -> str | None:
    """The state-dict name of a GGUF tensor, None where a decoder has no place for it."""
    stem, _, kind = tensor.rpartition(".")
    if stem in TOP_TENSORS:
        return f"{TOP_TENSORS[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in LAYER_TENSORS:
        return f"layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.{kind}"
    return None


def decoder_config(header: gguf.GGUFHeader) -> DecoderConfig:
    """The shape of a `qwen3` GGUF; ModelError names what is missing or not supported."""
    if header.architecture != "qwen3":
        raise ModelError(
            f"{header.path}: the torch backend runs 'qwen3' models, not {header.architecture!r}: use llama.cpp"
        )
    if header.metadata.get("qwen3.rope.scaling.type", "none") != "none":
        raise ModelError(f"{header.path}: the torch backend does not know scaled RoPE: use llama.cpp")
    if "token_embd.weight" not in header.tensors:
        raise ModelError(f"{header.path}: tensor token_embd.weight is missing; convert the model again")
    config = DecoderConfig(
        vocab_size=header.tensors["token_embd.weight"].shape[0],
        hidden_size=_size(header, "embedding_length"),
        num_hidden_layers=_size(header, "block_count", MOST_LAYERS),
        num_attention_heads=_size(header, "attention.head_count"),
        num_key_value_heads=_size(header, "attention.head_count_kv"),
        head_dim=_size(header, "attention.key_length"),
        intermediate_size=_size(header, "feed_forward_length"),
        rope_theta=_positive(header, "rope.freq_base"),
        rms_norm_eps=_positive(header, "attention.layer_norm_rms_epsilon"),
        context_length=_size(header, "context_length"),
        tie_word_embeddings="output.weight" not in header.tensors,
    )
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        raise ModelError(f"{header.path}: {heads} heads cannot share {kv_heads} key-value heads; convert it again")
    if config.head_dim % 2 or header.metadata.get("qwen3.rope.dimension_count", config.head_dim) != config.head_dim:
        raise ModelError(f"{header.path}: the torch backend rotates whole heads of even size only: use llama.cpp")
    return config


def _size(header: gguf.GGUFHeader, name: str, most: int = LARGEST_SIZE) -> int:
    value = header.require(f"qwen3.{name}", int)
    if not 1 <= value <= most:
        raise ModelError(f"{header.path}: qwen3.{name} is {value}, expected 1 to {most}; convert the model again")
    return value


def _positive(header: gguf.GGUFHeader, name: str) -> float:
    value = header.require(f"qwen3.{name}", float)
    if not 0.0 < value < math.inf:
        raise ModelError(f"{header.path}: qwen3.{name} is {value}, expected a positive number; convert the model again")
    return value


def load_decoder(path: Path) -> Decoder:
    """The model in a `qwen3` GGUF, float32, in eval mode; ModelError names the first tensor that does not fit."""
    header = gguf.read_header(path)
    config = decoder_config(header)
    with torch.device("meta"):
        model = Decoder(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    state = {}
    for name, info in header.tensors.items():
        ours = state_name(name)
        if ours not in shapes:
            raise ModelError(f"{path}: tensor {name} has no place in a Qwen3 decoder: use llama.cpp")
        if info.shape != shapes[ours]:
            found, wanted = list(info.shape), list(shapes[ours])
            raise ModelError(f"{path}: tensor {name} has shape {found}, not {wanted}; convert the model again")
        state[ours] = gguf.load_tensor(header, name)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["embed_tokens.weight"]
    for name in shapes:
        if name not in state:
            raise ModelError(f"{path}: no tensor for {name}; download or convert the model again")
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)
