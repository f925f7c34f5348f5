"""A Qwen3 GGUF as a torch `Decoder`: weights dequantized to float32, shape read from the metadata."""

from pathlib import Path
from typing import Any

import torch

from localdflash.errors import ModelError
from localdflash.targets.torch_decoder import Decoder, DecoderConfig
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

    def need(name: str) -> Any:
        if f"qwen3.{name}" not in header.metadata:
            raise ModelError(f"{header.path}: qwen3.{name} is missing from the metadata")
        return header.metadata[f"qwen3.{name}"]

    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{header.path}: tensor token_embd.weight is missing")
    return DecoderConfig(
        vocab_size=embedding.shape[0],
        hidden_size=int(need("embedding_length")),
        num_hidden_layers=int(need("block_count")),
        num_attention_heads=int(need("attention.head_count")),
        num_key_value_heads=int(need("attention.head_count_kv")),
        head_dim=int(need("attention.key_length")),
        intermediate_size=int(need("feed_forward_length")),
        rope_theta=float(need("rope.freq_base")),
        rms_norm_eps=float(need("attention.layer_norm_rms_epsilon")),
        context_length=int(need("context_length")),
        tie_word_embeddings="output.weight" not in header.tensors,
    )


def load_decoder(path: Path) -> Decoder:
    """The model in a `qwen3` GGUF, float32, in eval mode."""
    header = gguf.read_header(path)
    config = decoder_config(header)
    with torch.device("meta"):
        model = Decoder(config)
    state = {}
    for name in header.tensors:
        ours = state_name(name)
        if ours is None:
            raise ModelError(f"{path}: tensor {name} has no place in a Qwen3 decoder: use llama.cpp")
        state[ours] = gguf.load_tensor(header, name)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["embed_tokens.weight"]
    for name, parameter in model.state_dict().items():
        if name not in state or state[name].shape != parameter.shape:
            raise ModelError(f"{path}: no tensor of shape {list(parameter.shape)} for {name}")
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)
