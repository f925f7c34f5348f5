"""Small Hugging Face checkpoints, quantized here by the formula for one weight, and the weights that they mean."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY, HIDDEN, HEADS, KV_HEADS, INNER, EXPERTS = 160, 128, 4, 2, 256, 4
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": 64,
    "intermediate_size": INNER,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": QWEN3,
    "qwen3_moe": {
        **QWEN3,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
    },
    "llama": {
        **{key: value for key, value in QWEN3.items() if key != "head_dim"},
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64},
        "tie_word_embeddings": True,
    },
}


@dataclass
class Case:
    """The tensors of a checkpoint, those that they stand for, and config.json's `quantization_config`."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    meant: dict[str, Tensor] = field(default_factory=dict)
    quantization: dict[str, Any] | None = None


Packer = Callable[[Case, str, Tensor], None]


def gptq(case: Case, prefix: str, weight: Tensor) -> None:
    """4 bits, groups of 128, symmetric; eight codes in a word, the first one lowest, stored zeros one less."""
    case.quantization = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
    n, k = weight.shape
    scales = (weight.view(n, -1, 128).abs().amax(-1) / 7).half()  # [n, groups]
    spread = scales.float().repeat_interleave(128, 1)
    codes = ((weight / spread).round().clamp(-8, 7) + 8).int()
    words = sum(codes.view(n, -1, 8)[..., i].long() << (4 * i) for i in range(8))
    assert isinstance(words, Tensor)
    case.tensors |= {
        f"{prefix}.qweight": words.to(torch.int32).t().contiguous(),
        f"{prefix}.qzeros": torch.full((k // 128, n // 8), 0x77777777, dtype=torch.int32),
        f"{prefix}.scales": scales.t().contiguous(),
        f"{prefix}.g_idx": (torch.arange(k) // 128).int(),
        f"{prefix}.bias": torch.zeros(n, dtype=torch.float16),  # as AutoGPTQ writes it
    }
    case.meant[f"{prefix}.weight"] = (codes - 8) * spread


def fp8(case: Case, prefix: str, weight: Tensor) -> None:
    """compressed-tensors "float-quantized": e4m3 with a scale for every row."""
    case.quantization = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    case.tensors |= {f"{prefix}.weight": codes, f"{prefix}.weight_scale": scale.bfloat16()}
    case.tensors[f"{prefix}.input_scale"] = torch.ones(1)
    case.meant[f"{prefix}.weight"] = codes.float() * scale.bfloat16().float()


def floats(case: Case, prefix: str, weight: Tensor) -> None:
    """bfloat16, which becomes int8 when it is loaded: 255 steps for every 128 weights of a row."""
    weight = weight.bfloat16()
    case.tensors[f"{prefix}.weight"] = weight
    step = weight.float().view(len(weight), -1, 128).abs().amax(-1).repeat_interleave(128, 1) / 127
    case.meant[f"{prefix}.weight"] = (weight.float() / step).round() * step


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every parameter as transformers names it."""
    d, q, kv = 64, config["num_attention_heads"] * 64, config["num_key_value_heads"] * 64
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCABULARY, HIDDEN), "model.norm": (HIDDEN,)}
    if not config["tie_word_embeddings"]:
        found["lm_head"] = (VOCABULARY, HIDDEN)
    for layer in (f"model.layers.{i}" for i in range(config["num_hidden_layers"])):
        found |= {f"{layer}.self_attn.q_proj": (q, HIDDEN), f"{layer}.self_attn.o_proj": (HIDDEN, q)}
        found |= {f"{layer}.self_attn.{name}_proj": (kv, HIDDEN) for name in "kv"}
        found |= {f"{layer}.{name}_layernorm": (HIDDEN,) for name in ("input", "post_attention")}
        if config["model_type"] != "llama":
            found |= {f"{layer}.self_attn.{name}_norm": (d,) for name in "qk"}
        inner = config.get("moe_intermediate_size", INNER)
        for mlp in [f"experts.{i}." for i in range(config.get("num_experts", 0))] or [""]:
            found |= {f"{layer}.mlp.{mlp}{name}_proj": (inner, HIDDEN) for name in ("gate", "up")}
            found[f"{layer}.mlp.{mlp}down_proj"] = (HIDDEN, inner)
        if "num_experts" in config:
            found[f"{layer}.mlp.gate"] = (config["num_experts"], HIDDEN)
    return found


def make(config: dict[str, Any], packer: Packer) -> Case:
    generator, case = torch.Generator().manual_seed(0), Case()
    for prefix, shape in shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1 or prefix.endswith("mlp.gate"):
            exact = (1 + 0.2 * noise if len(shape) == 1 else 0.2 * noise).bfloat16()
            case.tensors[f"{prefix}.weight"], case.meant[f"{prefix}.weight"] = exact, exact.float()
            continue
        (floats if prefix in ("model.embed_tokens", "lm_head") else packer)(case, prefix, 0.15 * noise)
    return case


def write(folder: Path, config: dict[str, Any], case: Case, shards: int = 1) -> Path:
    folder.mkdir()
    quantized = {**config, "quantization_config": case.quantization} if case.quantization else config
    (folder / "config.json").write_text(json.dumps(quantized))
    if shards == 1:
        save_file(case.tensors, folder / "model.safetensors")
        return folder
    weight_map = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(case.tensors)}
    for shard in set(weight_map.values()):
        save_file({name: t for name, t in case.tensors.items() if weight_map[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
