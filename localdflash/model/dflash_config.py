"""The configuration of a DFlash drafter, from z-lab's config.json or a `dflash` GGUF's metadata.

Every field of the formats is honoured or refused by name, so a drafter that would run wrong does not load. Imports no
torch: llama.cpp's drafter reads it too.

Two things are our own, and others leave them alone: the short vocabulary (short_vocabulary.py) and the target that the
drafter was trained for (fingerprint.py). A GGUF has them as metadata `localdflash.*`, config.json as its `localdflash`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from localdflash.errors import ModelError
from localdflash.files.regular import open_model
from localdflash.model.config_fields import (
    Fields,
    as_flag,
    as_flags,
    as_layer_count,
    as_layer_kinds,
    as_number,
    as_object,
    as_optional_flag,
    as_text,
    as_whole,
    as_wholes,
)
from localdflash.model.decoder_config import DecoderConfig
from localdflash.model.fingerprint import TrainedFor
from localdflash.weights import gguf

REFUSED_JSON = {
    "conv_kernel_size": "DFlash 2 (convolutions and selector)",
    "selector_rank": "DFlash 2 (convolutions and selector)",
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
OURS = "localdflash"
ANOTHER_LIST = "make it again with `localdflash train vocabulary`"
SHORT_KEY = f"{OURS}.short_vocabulary"
SHORT_HEAD = ("d2t", "output.weight")  # tensors of a GGUF: the ids of the rows of a head, and these rows
LARGEST_JSON = 1 << 20  # bytes
NO_FIELDS: dict[str, object] = {}


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
    from_anchor: bool = False  # the anchor's slot proposes too: each slot the token behind it, not its own
    short: tuple[int, ...] = ()  # the tokens that it proposes from, ascending; empty: all
    trained_for: TrainedFor | None = None

    @property
    def first_slot(self) -> int:
        """The first slot that proposes."""
        return 0 if self.from_anchor else 1

    @property
    def drafts(self) -> int:
        """How many tokens a block proposes."""
        return self.block_size - self.first_slot

    def is_sliding(self, layer: int) -> bool:
        """Whether a layer sees only a window of the context."""
        return self.window is not None and layer < len(self.sliding) and self.sliding[layer]

    def is_causal(self, layer: int) -> bool:
        """Whether a layer's block rows see only the rows before them."""
        return self.is_sliding(layer) if self.causal is None else self.causal


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
    top = Fields(where, document)
    nested, rope, scaling = (
        top.get(name, as_object, NO_FIELDS) for name in ("dflash_config", "rope_parameters", "rope_scaling")
    )
    fields, rotary = Fields(where, nested, document), Fields(where, rope, scaling, document)
    for name, meaning in REFUSED_JSON.items():
        fields.refuse(name, meaning)
    for name in ("rope_type", "type"):
        rotary.refuse(name, "scaled RoPE", ("default",))
    rotary.refuse("partial_rotary_factor", "partial RoPE", (1,))
    fields.refuse("hidden_act", "another activation than SiLU", ("silu",))
    layers = fields.need("num_hidden_layers", as_layer_count)
    window, sliding = _sliding_of_json(fields, layers)
    return _sound(
        DFlashConfig(
            decoder=DecoderConfig(
                vocab_size=fields.need("vocab_size", as_whole),
                hidden_size=fields.need("hidden_size", as_whole),
                num_hidden_layers=layers,
                num_attention_heads=fields.need("num_attention_heads", as_whole),
                num_key_value_heads=fields.need("num_key_value_heads", as_whole),
                head_dim=fields.need("head_dim", as_whole),
                intermediate_size=fields.need("intermediate_size", as_whole),
                rope_theta=rotary.need("rope_theta", as_number),
                rms_norm_eps=fields.get("rms_norm_eps", as_number, 1e-6),
                context_length=fields.get("max_position_embeddings", as_whole, 4096),
                attention_bias=fields.get("attention_bias", as_flag, False),
            ),
            block_size=fields.need("block_size", as_whole),
            mask_token_id=fields.need("mask_token_id", as_whole),
            taps=fields.need("target_layer_ids", as_wholes),
            window=window,
            sliding=sliding,
            causal=top.get("is_causal", as_optional_flag, fields.get("causal", as_optional_flag, None)),
            embedding_scale=fields.get("input_embedding_scale", as_number, 1.0),
            logit_scale=fields.get("output_multiplier", as_number, 1.0),
            softcap=fields.get("final_logit_softcapping", as_number, 0.0),
            from_anchor=fields.get("sample_from_anchor", as_flag, False),
            **_our_own(Fields(where, {f"{OURS}.{name}": value for name, value in _flat(top.get(OURS, as_object, {}))})),
        ),
        where,
    )


def _flat(fields: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Fields, and those of the objects among them as "object.field"."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", found) for inner, found in value.items())
        else:
            yield name, value


def _our_own(fields: Fields) -> dict[str, Any]:
    """The fields that only localdflash writes."""
    name, kind, digest = (fields.get(f"{OURS}.target.{field}", as_text, "") for field in ("name", "kind", "digest"))
    tau = fields.get(f"{OURS}.target.tau", as_number, 0.0)
    return {
        "short": fields.get(SHORT_KEY, as_wholes, tuple[int, ...]()),
        "trained_for": TrainedFor(name, kind, digest, tau) if digest else None,
    }


def _sliding_of_json(fields: Fields, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """The window, and which layers slide. `use_swa` means all of them, `use_sliding_window: false` none."""
    types = fields.get("layer_types", as_layer_kinds, ("full_attention",) * layers)
    if len(types) != layers:
        raise ModelError(f"{fields.where}: layer_types names {len(types)} layers of {layers}")
    everywhere = fields.get("use_swa", as_flag, False)
    sliding = tuple(everywhere or kind == "sliding_attention" for kind in types)
    if not any(sliding) or not (everywhere or fields.get("use_sliding_window", as_flag, True)):
        return None, ()
    return fields.get("swa_window_size", as_whole, 0) or fields.need("sliding_window", as_whole), sliding


def config_of_gguf(header: gguf.GGUFHeader) -> DFlashConfig:
    """A drafter's configuration from a `dflash` GGUF's metadata."""
    where = str(header.path)
    if header.architecture != "dflash":
        raise ModelError(f"{where}: architecture {header.architecture!r} is no DFlash drafter (expected 'dflash')")
    fields = Fields(where, {name.removeprefix("dflash."): value for name, value in header.metadata.items()})
    for name, meaning in REFUSED_GGUF.items():
        fields.refuse(name, meaning)
    head_dim = fields.need("attention.key_length", as_whole)
    fields.refuse("rope.scaling.type", "scaled RoPE", ("none",))
    fields.refuse("rope.dimension_count", "partial RoPE", (head_dim,))
    window = fields.get("attention.sliding_window", as_whole, 0)
    return _sound(
        DFlashConfig(
            decoder=DecoderConfig(
                vocab_size=fields.need("tokenizer.ggml.tokens", len),
                hidden_size=fields.need("embedding_length", as_whole),
                num_hidden_layers=fields.need("block_count", as_layer_count),
                num_attention_heads=fields.need("attention.head_count", as_whole),
                num_key_value_heads=fields.need("attention.head_count_kv", as_whole),
                head_dim=head_dim,
                intermediate_size=fields.need("feed_forward_length", as_whole),
                rope_theta=fields.get("rope.freq_base", as_number, 1e4),
                rms_norm_eps=fields.need("attention.layer_norm_rms_epsilon", as_number),
                context_length=fields.need("context_length", as_whole),
                attention_bias="blk.0.attn_q.bias" in header.tensors,
            ),
            block_size=fields.need("block_size", as_whole),
            mask_token_id=fields.need("tokenizer.ggml.mask_token_id", as_whole),
            taps=tuple(layer - 1 for layer in fields.need("target_layers", as_wholes)),  # llama.cpp counts layer inputs
            window=window or None,
            sliding=fields.need("attention.sliding_window_pattern", as_flags) if window else (),
            causal=fields.get("attention.causal", as_optional_flag, None),
            embedding_scale=fields.get("embedding_scale", as_number, 1.0),
            logit_scale=fields.get("logit_scale", as_number, 1.0),
            softcap=fields.get("final_logit_softcapping", as_number, 0.0),
            from_anchor=fields.get("sample_from_anchor", as_flag, False),
            **_our_own(fields),
        ),
        where,
    )


def own_tensors(header: gguf.GGUFHeader) -> dict[str, gguf.TensorInfo]:
    """The tensors of a GGUF drafter without the short head, which llama.cpp reads: others take the target's rows."""
    left_out = SHORT_HEAD if SHORT_KEY in header.metadata else ()
    return {name: info for name, info in header.tensors.items() if name not in left_out}


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
    if any(later <= earlier for earlier, later in pairwise(config.short)):
        raise ModelError(f"{where}: the ids of its short vocabulary do not ascend; {ANOTHER_LIST}")
    if config.short and config.short[-1] >= c.vocab_size:
        last = config.short[-1]
        raise ModelError(f"{where}: id {last} of its short vocabulary is not one of {c.vocab_size}; {ANOTHER_LIST}")
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
