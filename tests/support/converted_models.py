"""Small Qwen2, Qwen3, Qwen3-MoE and Llama models of Hugging Face with random weights, and their GGUF files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.support.gguf_writing import (
    add_metadata,
    add_tensor,
    expert_halves,
    finish,
    names_of,
    rounded,
    shape_numbers,
    tensor_name,
)

VOCABULARY, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 97, 64, 4, 2, 32, 256
EXPERTS, CHOSEN, INNER = 8, 3, 32
CONVOLUTIONS = ("conv1d.weight", "shortconv.conv.weight")
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # short enough for all three frequency ranges to occur
}


def hugging_face_shape(layers: int, context: int, eps: float) -> dict[str, Any]:
    """Return the fields common to the configurations of all families."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": eps,
        "max_position_embeddings": context,
        "attn_implementation": "eager",
    }


def numbers_of(config: Any) -> dict[str, Any]:
    """Return the metadata of a file with such a configuration."""
    numbers = shape_numbers(config, config.max_position_embeddings)
    return numbers | {"vocab_size": config.vocab_size, "rope.dimension_count": config.head_dim}


COMMON = hugging_face_shape(3, CONTEXT, 1e-5)


def llama(rope: dict[str, Any], tied: bool) -> Any:
    return LlamaForCausalLM(LlamaConfig(**COMMON, intermediate_size=96, rope_parameters=rope, tie_word_embeddings=tied))


MODELS: dict[str, Callable[[], Any]] = {
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(**COMMON, intermediate_size=96, rope_parameters=PLAIN_ROPE, tie_word_embeddings=True)
    ),
    "qwen3moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **COMMON,
            intermediate_size=160,
            moe_intermediate_size=INNER,
            num_experts=EXPERTS,
            num_experts_per_tok=CHOSEN,
            norm_topk_prob=True,
            rope_parameters=PLAIN_ROPE,
            tie_word_embeddings=False,
        )
    ),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            **COMMON | {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1},
            intermediate_size=96,
            rope_parameters=PLAIN_ROPE,
            tie_word_embeddings=True,
        )
    ),
    "llama": lambda: llama(PLAIN_ROPE, tied=False),
    "llama 3.1": lambda: llama(LLAMA3_ROPE, tied=True),
}


@dataclass
class Case:
    """One of Hugging Face's models with random weights, and what its GGUF holds."""

    model: Any
    architecture: str
    tensors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path, kind: str = "F32", experts: str = "", tokens: Sequence[str] = ()) -> Path:
        """Write a file with the reference writer, without a tokenizer; vectors, biases and routers stay float32.

        `tokens` are written as the vocabulary, as in models with a tokenizer.
        """
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_tokenizer_model("none")
        if tokens:
            writer.add_token_list(list(tokens))
        for name, value in self.numbers.items():
            add_metadata(writer, f"{self.architecture}.{name}", value)
        for name, values in self.tensors.items():
            exact = values.ndim == 1 or name.endswith(".bias") or "gate_inp" in name or name.endswith(CONVOLUTIONS)
            its = experts if experts and "_exps" in name else kind
            add_tensor(writer, name, values, "F32" if exact else its)
        finish(writer)
        return path


def case_of(name: str, kind: str = "F32") -> Case:
    """Return a model whose weights survive quantization to `kind` unchanged."""
    model = MODELS[name]().float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.ndim == 1 else 0.2 * noise)
            if parameter.ndim > 1 and not key.endswith("mlp.gate.weight"):
                parameter.copy_(rounded_tensor(parameter, kind))
    case = Case(model, name.split(maxsplit=1)[0], dict(converted(model)), numbers_of(model.config))
    if name == "qwen2":  # as the converter writes it
        del case.numbers["attention.key_length"], case.numbers["attention.value_length"]
    if name == "llama 3.1":
        plain = llama(PLAIN_ROPE, tied=True).model.rotary_emb.inv_freq
        case.tensors["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq).numpy()
    return case


def converted(model: Any) -> Any:
    """Yield (name, values) as llama.cpp's converter writes them: experts split, Llama's q and k interleaved."""
    is_llama = isinstance(model, LlamaForCausalLM)
    names = names_of(model.config.model_type.replace("_", ""), model.config.num_hidden_layers)
    for key, parameter in model.named_parameters():
        values = parameter.detach()
        if is_llama and key.endswith(("q_proj.weight", "k_proj.weight")):
            values = interleaved(values)
        for part, its in expert_halves(key, values):
            yield tensor_name(names, part), its.contiguous().numpy()


def interleaved(values: Tensor) -> Tensor:
    """Put elements of every head that rotate together next to each other, as in llama.cpp's Llama files."""
    heads = values.view(-1, HEAD_DIM, values.shape[1])
    return torch.stack((heads[:, : HEAD_DIM // 2], heads[:, HEAD_DIM // 2 :]), 2).reshape(values.shape)


def rounded_tensor(values: Tensor, kind: str) -> Tensor:
    """Return the values after quantization to `kind`."""
    return torch.from_numpy(rounded(values.numpy(), kind))


def ids_of(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, VOCABULARY, count)]
