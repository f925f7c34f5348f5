"""The shape of a decoder from a Hugging Face config.json.

Every field that changes what the model computes is honoured or refused by name; the rest is not read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.weights.gguf_limits import LARGEST_SIZE, MOST_LAYERS

MODEL_TYPES = ("qwen3", "qwen3_moe", "llama")
INSTEAD = "use a GGUF of the model with `--backend llama.cpp`"
NEUTRAL: dict[str, tuple[object, ...]] = {  # fields and the values under which they change nothing; absent is neutral
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
}
ROPE_TYPES = ("default", "llama3")
QWEN3_HEAD_DIM = 128  # of a config.json that leaves it out


@dataclass(frozen=True)
class _Fields:
    """An object of a JSON document; null counts as absent."""

    where: str
    values: Mapping[str, object]

    def inner(self, name: str) -> "_Fields":
        """An object inside, empty if it is absent."""
        value = self.values.get(name) or {}
        return _Fields(self.where, value) if isinstance(value, dict) else self.bad(name)

    def size(self, name: str, default: int = 0, most: int = LARGEST_SIZE) -> int:
        """A positive integer; it must be there unless there is a default."""
        value = self._value(name, default)
        whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
        return value if whole and isinstance(value, int) else self.bad(name)

    def positive(self, name: str, default: float = 0.0) -> float:
        """A positive number; it must be there unless there is a default."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.bad(name)
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false, false if it is absent."""
        value = self._value(name, False)
        return value if isinstance(value, bool) else self.bad(name)

    def _value(self, name: str, default: object) -> object:
        value = self.values.get(name)
        return default if value is None else value

    def bad(self, name: str) -> NoReturn:
        """A ModelError: the field is missing or makes no sense."""
        found = f"is {str(self.values[name])[:60]!r}, which makes no sense" if name in self.values else "is missing"
        raise ModelError(f"{self.where}: {name} {found}; download the checkpoint again")

    def refuse(self, name: str) -> NoReturn:
        """Raise ModelError: the engine does not know what the field asks for."""
        found = str(self.values[name])[:60]
        raise ModelError(f"{self.where}: the CUDA engine does not run {name} {found!r}; {INSTEAD}")


def decoder_config_of_json(config: Mapping[str, object], where: str) -> DecoderConfig:
    """The shape of a Qwen3, Qwen3-MoE or Llama decoder; ModelError names the field that is missing or not supported."""
    fields, kind = _Fields(where, config), config.get("model_type")
    if kind not in MODEL_TYPES:
        known = ", ".join(repr(name) for name in MODEL_TYPES)
        raise ModelError(f"{where}: the CUDA engine runs {known} models, not {str(kind)[:60]!r}; {INSTEAD}")
    for name, neutral in NEUTRAL.items():
        if config.get(name) not in (None, *neutral):
            fields.refuse(name)
    if any(layer != "full_attention" for layer in _list(fields, "layer_types")):
        fields.refuse("layer_types")
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    head_dim = fields.size("head_dim", QWEN3_HEAD_DIM if kind == "qwen3" else hidden // heads)
    if heads % kv_heads:
        fields.bad("num_key_value_heads")
    if head_dim % 2:
        fields.refuse("head_dim")
    theta, factors = _rope(fields, head_dim)
    experts = _experts(fields) if kind == "qwen3_moe" else 0
    return DecoderConfig(
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden,
        num_hidden_layers=fields.size("num_hidden_layers", most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=0 if experts else fields.size("intermediate_size"),
        rope_theta=theta,
        rms_norm_eps=fields.positive("rms_norm_eps", 1e-6),
        context_length=fields.size("max_position_embeddings", most=1 << 31),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        qk_norm=kind != "llama",
        rope_factors=factors,
        num_experts=experts,
        num_experts_per_tok=fields.size("num_experts_per_tok", most=experts) if experts else 0,
        moe_intermediate_size=fields.size("moe_intermediate_size") if experts else 0,
        norm_topk_prob=experts > 0 and fields.flag("norm_topk_prob"),
    )


def _list(fields: _Fields, name: str) -> list[object]:
    value = fields.values.get(name) or []
    return value if isinstance(value, list) else fields.bad(name)


def _experts(fields: _Fields) -> int:
    """The number of experts, under its older or newer name."""
    return fields.size("num_local_experts" if "num_local_experts" in fields.values else "num_experts")


def _rope(fields: _Fields, head_dim: int) -> tuple[float, tuple[float, ...]]:
    """Theta, and the divisors of the frequencies; older files scale in `rope_scaling` and have theta outside it."""
    rope = _Fields(fields.where, {**fields.inner("rope_scaling").values, **fields.inner("rope_parameters").values})
    name = "type" if rope.values.get("rope_type") is None else "rope_type"
    kind = rope.values.get(name) or "default"
    if kind not in ROPE_TYPES:
        rope.refuse(name)
    for place in (fields, rope):
        if place.values.get("partial_rotary_factor") not in (None, 1):
            place.refuse("partial_rotary_factor")
    theta = (rope if rope.values.get("rope_theta") is not None else fields).positive("rope_theta", 1e4)
    return theta, _llama3_factors(rope, theta, head_dim) if kind == "llama3" else ()


def _llama3_factors(rope: _Fields, theta: float, head_dim: int) -> tuple[float, ...]:
    """Divisors of Llama 3.1: 1 for short waves, `factor` for long ones, between them a blend of the frequencies.

    Source: Llama 3.1's reference code, as `rope_type` "llama3" of Hugging Face configs.
    """
    factor, trained = rope.positive("factor"), rope.positive("original_max_position_embeddings")
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if high <= low:
        rope.bad("high_freq_factor")

    def divisor(index: int) -> float:
        turns = trained / (2 * math.pi * theta ** (2 * index / head_dim))  # over the trained context
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return 1 / ((1 - kept) / factor + kept)

    return tuple(divisor(index) for index in range(head_dim // 2))
