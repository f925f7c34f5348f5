"""A pair small enough for Triton's interpreter: two layers, one key-value head, head dimension 64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file

from localdflash.backends.reference.decoder import Decoder
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.gguf_config import EXPERT_TENSORS, LAYER_TENSORS
from tests.support.gguf_writing import add_metadata, add_tensor, finish, shape_numbers

SHAPE = DecoderConfig(160, 128, 3, 2, 1, 64, 128, context_length=512, tie_word_embeddings=False)
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
LAYER = {ours: theirs for theirs, ours in (LAYER_TENSORS | EXPERT_TENSORS).items()}


def write_target(path: Path, shape: DecoderConfig, quantization: str = "Q8_0") -> Path:
    """Write a random target."""
    torch.manual_seed(0)
    model, arch = Decoder(shape), "qwen3moe" if shape.num_experts else "qwen3"
    writer = gguf.GGUFWriter(path, arch)
    for name, value in shape_numbers(shape, shape.context_length).items():
        add_metadata(writer, f"{arch}.{name}", value)
    for name, parameter in model.state_dict().items():
        noise = torch.randn(parameter.shape)
        values = (1 + 0.1 * noise if parameter.ndim == 1 else 0.15 * noise).numpy()
        exact = parameter.ndim == 1 or "gate_inp" in _gguf_name(name)
        add_tensor(writer, _gguf_name(name), values, "F32" if exact else quantization)
    finish(writer)
    return path


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    parts = stem.split(".")
    if parts[0] != "layers":
        return f"{TOP[stem]}.{kind}"
    return f"blk.{parts[1]}.{LAYER['.'.join(parts[2:])]}.{kind}"


def write_drafter(folder: Path, shape: DecoderConfig) -> Path:
    """Write a random drafter of one sliding and one full layer, as safetensors with its configuration."""
    torch.manual_seed(1)
    decoder = replace(shape, num_hidden_layers=2, num_experts=0)
    model = DFlash(DFlashConfig(decoder, 8, 159, (0, 1)))
    state = {
        name: (1 + 0.1 * noise if noise.ndim == 1 else 0.15 * noise).bfloat16()
        for name, parameter in model.state_dict().items()
        for noise in [torch.randn(parameter.shape)]
    }
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "drafter.safetensors")
    (folder / "config.json").write_text(CONFIG % (shape.vocab_size, shape.hidden_size, shape.intermediate_size))
    return folder / "drafter.safetensors"


CONFIG = """{"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 8, "vocab_size": %d,
"dflash_config": {"mask_token_id": 159, "target_layer_ids": [0, 1]}, "num_hidden_layers": 2, "hidden_size": %d,
"intermediate_size": %d, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "rms_norm_eps": 1e-6,
"rope_theta": 10000.0, "max_position_embeddings": 512, "sliding_window": 24, "use_sliding_window": true,
"layer_types": ["sliding_attention", "full_attention"]}"""
