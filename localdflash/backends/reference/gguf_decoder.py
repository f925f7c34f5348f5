"""Loads a Qwen2, Qwen3, Qwen3-MoE or Llama GGUF as a torch `Decoder`, dequantized to float32."""

from pathlib import Path

import torch
from torch import Tensor

from localdflash.backends.reference.decoder import Decoder
from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.gguf_config import (
    EXPERT_TENSORS,
    LAYER_TENSORS,
    ROPE_FACTORS,
    TOP_TENSORS,
    decoder_config,
)
from localdflash.models.weights import gguf


def state_name(tensor: str) -> str | None:
    """Return the state-dict name of a GGUF tensor; None if a decoder has no such tensor."""
    stem, _, kind = tensor.rpartition(".")
    if stem in TOP_TENSORS:
        return f"{TOP_TENSORS[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) != 3 or parts[0] != "blk":
        return None
    ours = LAYER_TENSORS.get(parts[2]) or EXPERT_TENSORS.get(parts[2])
    return ours and f"layers.{parts[1]}.{ours}.{kind}"


def rotate_half_order(heads: int, head_dim: int) -> Tensor:
    """Return the row order, int64, that turns a `llama` file's q or k into rotate-half order: `ours = file[order]`."""
    return torch.arange(heads * head_dim).view(heads, head_dim // 2, 2).transpose(1, 2).flatten()


def load_decoder(path: Path) -> Decoder:
    """Return the model of a GGUF, float32, in eval mode; ModelError names a missing, unexpected or misshapen tensor."""
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
            raise ModelError(f"{path}: unexpected tensor {name} in a {header.architecture} decoder; use llama.cpp")
        if info.shape != shapes[ours]:
            found, expected = list(info.shape), list(shapes[ours])
            raise ModelError(f"{path}: tensor {name} has shape {found}, not {expected}; convert the model again")
        state[ours] = _load(header, name, config)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["embed_tokens.weight"]
    for name in shapes:
        if name not in state:
            raise ModelError(f"{path}: no tensor for {name}; download or convert the model again")
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def layer_state(header: gguf.GGUFHeader, config: DecoderConfig, number: int) -> dict[str, Tensor]:
    """Return the parameters of one layer by their names in a `Layer`, float32."""
    prefix = f"layers.{number}."
    named = {name: state_name(name) or "" for name in header.tensors}
    return {
        ours.removeprefix(prefix): _load(header, name, config)
        for name, ours in named.items()
        if ours.startswith(prefix)
    }


def _load(header: gguf.GGUFHeader, name: str, config: DecoderConfig) -> Tensor:
    """Return a tensor in float32, the rows of a Llama's q and k in rotate-half order."""
    values = gguf.load_tensor(header, name)
    if header.architecture != "llama" or not name.endswith((".attn_q.weight", ".attn_k.weight")):
        return values
    return values[rotate_half_order(len(values) // config.head_dim, config.head_dim)]
