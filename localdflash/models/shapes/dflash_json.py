"""A drafter's config.json: in z-lab's format (DeepSpec's is the same with DSpark's fields), or in that of speculators.

In z-lab's, fields stand in `dflash_config` or beside it. In that of vLLM's speculators `transformer_layer_config` has
the network's shape, without what is the default of Hugging Face's Qwen3. Source: the published checkpoints of each.

Two things are our own, and others leave them alone: the short vocabulary (short_vocabulary.py) and the target that the
drafter was trained for (fingerprint.py). They are in the field `localdflash`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from localdflash.base.errors import ModelError
from localdflash.models.shapes.config_fields import (
    Fields,
    as_flag,
    as_layer_count,
    as_layer_kinds,
    as_number,
    as_object,
    as_optional_flag,
    as_text,
    as_whole,
    as_wholes,
)
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import OURS, SHORT_KEY, DFlashConfig, checked
from localdflash.models.shapes.fingerprint import TrainedFor
from localdflash.models.shapes.yarn import BETA_FAST, BETA_SLOW, makes_sense, yarn_factors, yarn_magnitude

REFUSED = {
    "attention_value_scale": "scaled attention values",
    "attention_sink_bias": "attention sinks",
    "mlp_bias": "biases in the MLP",
    "quantization_config": "quantized safetensors",
}
NEUTRAL = {  # what is refused unless it is one of these
    "hidden_act": ("another activation than SiLU", ("silu",)),
    "markov_head_type": ("gated or recurrent Markov heads", ("vanilla",)),
    "projector_type": ("Domino's correction", ("dflash",)),
    "rope_is_neox_style": ("interleaved RoPE", (True,)),
}
SPECULATORS = ("dflash", "dflash2", "dspark")
QWEN3: Mapping[str, object] = {  # the defaults of transformers' Qwen3Config, which speculators' files leave out
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
DFLASH2: Mapping[str, object] = {  # speculators' defaults
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 256,
    "selector_top_k": 16,
    "sliding_window_non_causal": True,
}
ANCHORED = ("Qwen3DSparkModel", "DSparkDraftModel")  # architectures whose anchor proposes where nothing else is said
NO_FIELDS: dict[str, object] = {}


def config_of_json(document: object, where: str) -> DFlashConfig:
    """Return a drafter's configuration from either format; both of z-lab's places of `block_size` are read."""
    top = Fields(where, document)
    if top.get("speculators_model_type", as_text, ""):
        return _of_speculators(top, document, where)
    nested = top.get("dflash_config", as_object, NO_FIELDS)
    fields = Fields(where, nested, document)
    _refuse_others(fields, fields.need("vocab_size", as_whole))
    decoder, layers = _decoder(fields, where, document)
    window, sliding = _sliding(fields, layers)
    anchored = top.get("architectures", lambda names: any(name in ANCHORED for name in names), False)
    return checked(
        DFlashConfig(
            decoder=decoder,
            block_size=fields.need("block_size", as_whole),
            mask_token_id=fields.need("mask_token_id", as_whole),
            taps=fields.need("target_layer_ids", as_wholes),
            window=window,
            sliding=sliding,
            causal=top.get("is_causal", as_optional_flag, fields.get("causal", as_optional_flag, None)),
            from_anchor=fields.get("sample_from_anchor", as_flag, anchored),
            **_scales_and_heads(fields),
            **our_own(Fields(where, {f"{OURS}.{name}": value for name, value in _flat(top.get(OURS, as_object, {}))})),
        ),
        where,
    )


def _of_speculators(top: Fields, document: object, where: str) -> DFlashConfig:
    """Their taps count the inputs of blocks, and a window is causal unless they say otherwise."""
    kind = top.get("speculators_model_type", as_text, "")
    if kind not in SPECULATORS:
        raise ModelError(f"{where}: speculators_model_type is {kind!r}: expected one of {', '.join(SPECULATORS)}")
    defaults = DFLASH2 if kind == "dflash2" else NO_FIELDS
    shape = top.get("transformer_layer_config", as_object, NO_FIELDS)
    network, fields = Fields(where, shape, QWEN3), Fields(where, document, defaults)
    network.refuse("model_type", "another network than Qwen3's", ("qwen3",))
    for place in (network, fields):
        _refuse_others(place, 0)
    decoder, layers = _decoder(network, where, shape)
    fields.refuse("target_hidden_size", "another hidden size than the target's", (decoder.hidden_size,))
    window, sliding = _sliding(network, layers)
    inputs = fields.need("aux_hidden_state_layer_ids", as_wholes)
    if 0 in inputs:
        raise ModelError(f"{where}: aux_hidden_state_layer_ids names 0: drafters that read embeddings do not run here")
    reads_markov = fields.get("confidence_head_with_markov", as_flag, False)
    if fields.get("enable_confidence_head", as_flag, False) and not reads_markov:
        raise ModelError(f"{where}: its confidence head reads no Markov embedding: such drafters do not run here")
    return checked(
        DFlashConfig(
            decoder=decoder,
            block_size=fields.get("block_size", as_whole, 8),
            mask_token_id=fields.need("mask_token_id", as_whole),
            taps=tuple(block - 1 for block in inputs),
            window=window,
            sliding=sliding,
            causal=False if fields.get("sliding_window_non_causal", as_flag, False) else None,
            from_anchor=fields.get("sample_from_anchor", as_flag, False),
            **_scales_and_heads(fields),
        ),
        where,
    )


def _refuse_others(fields: Fields, vocabulary: int) -> None:
    """Raise ModelError for what would run wrong; a `vocabulary` is the only size that the draft's may have."""
    for name, meaning in REFUSED.items():
        fields.refuse(name, meaning)
    for name, (meaning, neutral) in NEUTRAL.items():
        fields.refuse(name, meaning, neutral)
    if vocabulary:
        fields.refuse("draft_vocab_size", "a reduced vocabulary in this format", (vocabulary,))


def _decoder(fields: Fields, where: str, document: object) -> tuple[DecoderConfig, int]:
    """Return the shape of the network, and its layers."""
    top = Fields(where, document)
    rope, scaling = (top.get(name, as_object, NO_FIELDS) for name in ("rope_parameters", "rope_scaling"))
    rotary = Fields(where, rope, scaling, document)
    rotary.refuse("partial_rotary_factor", "partial RoPE", (1,))
    layers, head_dim = fields.need("num_hidden_layers", as_layer_count), fields.need("head_dim", as_whole)
    theta = rotary.get("rope_theta", as_number, 0.0) or fields.need("rope_theta", as_number)
    context = fields.get("max_position_embeddings", as_whole, 4096)
    factors, magnitude = _yarn(rotary, head_dim, theta, context)
    config = DecoderConfig(
        vocab_size=fields.need("vocab_size", as_whole),
        hidden_size=fields.need("hidden_size", as_whole),
        num_hidden_layers=layers,
        num_attention_heads=fields.need("num_attention_heads", as_whole),
        num_key_value_heads=fields.need("num_key_value_heads", as_whole),
        head_dim=head_dim,
        intermediate_size=fields.need("intermediate_size", as_whole),
        rope_theta=theta,
        rms_norm_eps=fields.get("rms_norm_eps", as_number, 1e-6),
        context_length=context,
        attention_bias=fields.get("attention_bias", as_flag, False),
        rope_factors=factors,
        rope_magnitude=magnitude,
    )
    return config, layers


def _yarn(rotary: Fields, head_dim: int, theta: float, context: int) -> tuple[tuple[float, ...], float]:
    """Divisors of the frequencies, and what queries and keys are stretched by; as Hugging Face reads these fields."""
    kinds = [rotary.get(name, as_text, "") for name in ("rope_type", "type")]
    if "yarn" not in kinds:
        for name in ("rope_type", "type"):
            rotary.refuse(name, "RoPE scaled otherwise than by YaRN", ("default",))
        return (), 1.0
    for name in ("mscale", "mscale_all_dim"):
        rotary.refuse(name, "YaRN's magnitude told otherwise than by attention_factor")
    factor = rotary.need("factor", as_number)
    original = rotary.get("original_max_position_embeddings", as_whole, context)
    fast, slow = rotary.get("beta_fast", as_number, BETA_FAST), rotary.get("beta_slow", as_number, BETA_SLOW)
    whole = rotary.get("truncate", as_flag, True)
    if not makes_sense(head_dim, theta, factor, original, fast, slow):
        raise ModelError(f"{rotary.where}: YaRN by a factor of {factor} over {original} tokens makes no sense")
    magnitude = rotary.get("attention_factor", as_number, yarn_magnitude(factor))
    return yarn_factors(head_dim, theta, factor, original, fast, slow, whole), magnitude


def _scales_and_heads(fields: Fields) -> dict[str, Any]:
    return {
        "embedding_scale": fields.get("input_embedding_scale", as_number, 1.0),
        "logit_scale": fields.get("output_multiplier", as_number, 1.0),
        "softcap": fields.get("final_logit_softcapping", as_number, 0.0),
        "markov_rank": fields.get("markov_rank", as_whole, 0),
        "judges": fields.get("enable_confidence_head", as_flag, False),
        "conv_kernel": fields.get("conv_kernel_size", as_whole, 0),
        "conv_group": fields.get("conv_group_size", as_whole, 0),
        "selector_rank": fields.get("selector_rank", as_whole, 0),
        "selector_top_k": fields.get("selector_top_k", as_whole, 0),
    }


def _flat(fields: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Fields, and those of the objects among them as "object.field"."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", found) for inner, found in value.items())
        else:
            yield name, value


def our_own(fields: Fields) -> dict[str, Any]:
    """Return the fields that only localdflash writes."""
    name, kind, digest = (fields.get(f"{OURS}.target.{field}", as_text, "") for field in ("name", "kind", "digest"))
    tau = fields.get(f"{OURS}.target.tau", as_number, 0.0)
    return {
        "short": fields.get(SHORT_KEY, as_wholes, tuple[int, ...]()),
        "trained_for": TrainedFor(name, kind, digest, tau) if digest else None,
    }


def _sliding(fields: Fields, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """Return the window, and which layers slide. `use_swa` means all of them, `use_sliding_window: false` none."""
    types = fields.get("layer_types", as_layer_kinds, ("full_attention",) * layers)
    if len(types) != layers:
        raise ModelError(f"{fields.where}: layer_types names {len(types)} layers of {layers}")
    everywhere = fields.get("use_swa", as_flag, False)
    sliding = tuple(everywhere or kind == "sliding_attention" for kind in types)
    if not any(sliding) or not (everywhere or fields.get("use_sliding_window", as_flag, True)):
        return None, ()
    return fields.get("swa_window_size", as_whole, 0) or fields.need("sliding_window", as_whole), sliding
