"""The configuration of a DFlash drafter, from z-lab's config.json or a `dflash` GGUF's metadata.

Every field of the formats is honoured or refused by name, so a drafter that would run wrong does not load. Imports no
torch: llama.cpp's drafter reads it too.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from localdflash.errors import ModelError
from localdflash.files.regular import open_model
from localdflash.model.decoder_config import DecoderConfig
from localdflash.weights import gguf

REFUSED_JSON = {
    "conv_kernel_size": "DFlash 2 (convolutions and selector)",
    "selector_rank": "DFlash 2 (convolutions and selector)",
    "sample_from_anchor": "a draft that starts in the anchor's own slot",
    "speculators_model_type": "the speculators container",
    "draft_vocab_size": "a reduced vocabulary",
    "attention_value_scale": "scaled attention values",
    "attention_sink_bias": "attention sinks",
    "mlp_bias": "biases in the MLP",
}
REFUSED_GGUF = {
    "conv_kernel_size": "DFlash 2 (convolutions and selector)",
    "selector_rank": "DFlash 2 (convolutions and selector)",
    "attention.value_scale": "scaled attention values",
    "hyper_connection.count": "hyper-connections",
}
MOST_LAYERS = 1000
LARGEST_JSON = 1 << 20  # bytes
NO_FIELDS: dict[str, object] = {}

T = TypeVar("T")


@dataclass(frozen=True)
class DFlashConfig:
    """Shape and conventions of one drafter checkpoint."""

    decoder: DecoderConfig  # num_hidden_layers are the drafter's own
    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]  # 0-based target blocks whose output is read
    window: int | None = None  # of the sliding layers, the query's own slot included
    sliding: tuple[bool, ...] = ()  # per layer; empty: none
    causal: bool | None = None  # inside the block; None: sliding layers causal, full layers bidirectional
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0

    def is_sliding(self, layer: int) -> bool:
        """Whether a layer sees only a window of the context."""
        return self.window is not None and layer < len(self.sliding) and self.sliding[layer]

    def is_causal(self, layer: int) -> bool:
        """Whether a layer's block rows see only the rows before them."""
        return self.is_sliding(layer) if self.causal is None else self.causal


class _Fields:
    """The fields of a configuration, looked up in several places in turn; each is converted or refused by name."""

    def __init__(self, where: str, *places: object) -> None:
        self.where = where
        for place in places:
            if not isinstance(place, Mapping):
                raise ModelError(f"{where}: expected a JSON object with fields, found {type(place).__name__}")
        self._places: list[Mapping[str, object]] = [place for place in places if isinstance(place, Mapping)]

    def get(self, name: str, convert: Callable[[Any], T], default: T) -> T:
        """The first value that is present and not null, or the default."""
        value = next((place[name] for place in self._places if place.get(name) is not None), None)
        if value is None:
            return default
        try:
            return convert(value)
        except (TypeError, ValueError, OverflowError):
            raise ModelError(f"{self.where}: {name} is {str(value)[:60]!r}, which makes no sense here") from None

    def need(self, name: str, convert: Callable[[Any], T]) -> T:
        """The same for a field that must be present."""
        value = self.get(name, lambda found: (convert(found),), None)
        if value is None:
            raise ModelError(f"{self.where}: {name} is missing")
        return value[0]

    def refuse(self, name: str, meaning: str, neutral: tuple[object, ...] = (False, 0, "none")) -> None:
        """Raise ModelError if the field is present anywhere and not neutral."""
        if any(place.get(name) not in (None, *neutral) for place in self._places):
            raise ModelError(f"{self.where}: {name} is set: drafters with {meaning} are not supported yet")


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError
    return value


def _layers(value: object) -> int:
    if not 1 <= _whole(value) <= MOST_LAYERS:
        raise ValueError
    return _whole(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _wholes(value: Any) -> tuple[int, ...]:
    return tuple(_whole(item) for item in value)


def _flags(value: Any) -> tuple[bool, ...]:
    return tuple(_flag(item) for item in value)


def _optional_flag(value: object) -> bool | None:
    return _flag(value)


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _kinds(value: Any) -> tuple[str, ...]:
    kinds = tuple(value)
    if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
        raise ValueError
    return kinds


def config_of_file(path: Path) -> DFlashConfig:
    """The configuration of a drafter's weights: in the GGUF file itself, or in config.json beside safetensors."""
    if path.suffix == ".gguf":
        return config_of_gguf(gguf.read_header(path))
    beside = path.with_name("config.json")
    with open_model(beside) as (stream, size):
        if size > LARGEST_JSON:
            raise ModelError(f"{beside}: larger than {LARGEST_JSON >> 20} MiB: not a drafter's configuration")
        text = stream.read()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{beside}: cannot read the drafter's configuration: {error}") from None
    return config_of_json(document, str(beside))


def config_of_json(document: object, where: str) -> DFlashConfig:
    """A drafter's configuration from z-lab's config.json; both places of `block_size` are read."""
    top = _Fields(where, document)
    nested, rope, scaling = (
        top.get(name, _object, NO_FIELDS) for name in ("dflash_config", "rope_parameters", "rope_scaling")
    )
    fields, rotary = _Fields(where, nested, document), _Fields(where, rope, scaling, document)
    for name, meaning in REFUSED_JSON.items():
        fields.refuse(name, meaning)
    for name in ("rope_type", "type"):
        rotary.refuse(name, "scaled RoPE", ("default",))
    rotary.refuse("partial_rotary_factor", "partial RoPE", (1,))
    fields.refuse("hidden_act", "another activation than SiLU", ("silu",))
    layers = fields.need("num_hidden_layers", _layers)
    window, sliding = _sliding_of_json(fields, layers)
    return _sound(
        DFlashConfig(
            decoder=DecoderConfig(
                vocab_size=fields.need("vocab_size", _whole),
                hidden_size=fields.need("hidden_size", _whole),
                num_hidden_layers=layers,
                num_attention_heads=fields.need("num_attention_heads", _whole),
                num_key_value_heads=fields.need("num_key_value_heads", _whole),
                head_dim=fields.need("head_dim", _whole),
                intermediate_size=fields.need("intermediate_size", _whole),
                rope_theta=rotary.need("rope_theta", _number),
                rms_norm_eps=fields.get("rms_norm_eps", _number, 1e-6),
                context_length=fields.get("max_position_embeddings", _whole, 4096),
                attention_bias=fields.get("attention_bias", _flag, False),
            ),
            block_size=fields.need("block_size", _whole),
            mask_token_id=fields.need("mask_token_id", _whole),
            taps=fields.need("target_layer_ids", _wholes),
            window=window,
            sliding=sliding,
            causal=top.get("is_causal", _optional_flag, fields.get("causal", _optional_flag, None)),
            embedding_scale=fields.get("input_embedding_scale", _number, 1.0),
            logit_scale=fields.get("output_multiplier", _number, 1.0),
            softcap=fields.get("final_logit_softcapping", _number, 0.0),
        ),
        where,
    )


def _sliding_of_json(fields: _Fields, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """The window, and which layers slide. `use_swa` means all of them, `use_sliding_window: false` none."""
    types = fields.get("layer_types", _kinds, ("full_attention",) * layers)
    if len(types) != layers:
        raise ModelError(f"{fields.where}: layer_types names {len(types)} layers of {layers}")
    everywhere = fields.get("use_swa", _flag, False)
    sliding = tuple(everywhere or kind == "sliding_attention" for kind in types)
    if not any(sliding) or not (everywhere or fields.get("use_sliding_window", _flag, True)):
        return None, ()
    return fields.get("swa_window_size", _whole, 0) or fields.need("sliding_window", _whole), sliding


def config_of_gguf(header: gguf.GGUFHeader) -> DFlashConfig:
    """A drafter's configuration from a `dflash` GGUF's metadata."""
    where = str(header.path)
    if header.architecture != "dflash":
        raise ModelError(f"{where}: architecture {header.architecture!r} is no DFlash drafter (expected 'dflash')")
    fields = _Fields(where, {name.removeprefix("dflash."): value for name, value in header.metadata.items()})
    for name, meaning in REFUSED_GGUF.items():
        fields.refuse(name, meaning)
    head_dim = fields.need("attention.key_length", _whole)
    fields.refuse("rope.scaling.type", "scaled RoPE", ("none",))
    fields.refuse("rope.dimension_count", "partial RoPE", (head_dim,))
    window = fields.get("attention.sliding_window", _whole, 0)
    return _sound(
        DFlashConfig(
            decoder=DecoderConfig(
                vocab_size=fields.need("tokenizer.ggml.tokens", len),
                hidden_size=fields.need("embedding_length", _whole),
                num_hidden_layers=fields.need("block_count", _layers),
                num_attention_heads=fields.need("attention.head_count", _whole),
                num_key_value_heads=fields.need("attention.head_count_kv", _whole),
                head_dim=head_dim,
                intermediate_size=fields.need("feed_forward_length", _whole),
                rope_theta=fields.get("rope.freq_base", _number, 1e4),
                rms_norm_eps=fields.need("attention.layer_norm_rms_epsilon", _number),
                context_length=fields.need("context_length", _whole),
                attention_bias="blk.0.attn_q.bias" in header.tensors,
            ),
            block_size=fields.need("block_size", _whole),
            mask_token_id=fields.need("tokenizer.ggml.mask_token_id", _whole),
            taps=tuple(layer - 1 for layer in fields.need("target_layers", _wholes)),  # llama.cpp counts layer inputs
            window=window or None,
            sliding=fields.need("attention.sliding_window_pattern", _flags) if window else (),
            causal=fields.get("attention.causal", _optional_flag, None),
            embedding_scale=fields.get("embedding_scale", _number, 1.0),
            logit_scale=fields.get("logit_scale", _number, 1.0),
            softcap=fields.get("final_logit_softcapping", _number, 0.0),
        ),
        where,
    )


def _sound(config: DFlashConfig, where: str) -> DFlashConfig:
    """The configuration, if a network can have this shape; else ModelError."""
    c = config.decoder
    if not c.num_key_value_heads or c.num_attention_heads % c.num_key_value_heads or not c.num_attention_heads:
        raise ModelError(f"{where}: {c.num_attention_heads} heads cannot share {c.num_key_value_heads} key/value heads")
    if c.head_dim < 2 or c.head_dim % 2:
        raise ModelError(f"{where}: head_dim {c.head_dim}: expected an even number")
    if not c.hidden_size or not c.vocab_size or not c.intermediate_size or config.block_size < 2 or not config.taps:
        raise ModelError(f"{where}: a size is zero, or the block holds no slot, or there are no taps")
    if config.window is not None and len(config.sliding) != c.num_hidden_layers:
        raise ModelError(f"{where}: sliding layers are told for {len(config.sliding)} of {c.num_hidden_layers} layers")
    return config


def check_fit(config: DFlashConfig, hidden_size: int, vocab_size: int, blocks: int, where: str) -> None:
    """Raise ModelError if a drafter does not fit a target of this shape, naming what does not."""
    if config.decoder.hidden_size != hidden_size:
        raise ModelError(f"{where}: hidden size {config.decoder.hidden_size}, but the target's is {hidden_size}")
    if config.decoder.vocab_size != vocab_size:
        raise ModelError(f"{where}: vocabulary of {config.decoder.vocab_size}, but the target's has {vocab_size}")
    for tap in config.taps:
        if not 0 <= tap < blocks - 1:
            raise ModelError(f"{where}: taps block {tap}, but the target has blocks 0 to {blocks - 2} to tap")
    if not 0 <= config.mask_token_id < vocab_size:
        raise ModelError(f"{where}: mask token {config.mask_token_id} is outside the vocabulary of {vocab_size}")
