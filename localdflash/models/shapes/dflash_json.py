"""Parses a drafter's config.json, in the format of z-lab (DeepSpec, Model Optimizer) or of vLLM's speculators.

Speculators omit the defaults of Hugging Face's Qwen3. Our field `localdflash` holds the short vocabulary and the
target that the drafter was trained for.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from localdflash.base.errors import ModelError
from localdflash.models.shapes.config_fields import (
    Fields,
    Refused,
    as_count,
    as_counts,
    as_flag,
    as_layer_count,
    as_number,
    as_object,
    as_text,
    converter,
    list_of,
)
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import OURS, SHORT_KEY, DFlashConfig, check_config
from localdflash.models.shapes.fingerprint import TrainedFor
from localdflash.models.shapes.yarn import BETA_FAST, BETA_SLOW, yarn_factors, yarn_magnitude

REFUSED: Refused = {
    "attention_value_scale": ("scaled attention values",),
    "attention_sink_bias": ("attention sinks",),
    "mlp_bias": ("biases in the MLP",),
    "quantization_config": ("quantized safetensors",),
    "hidden_act": ("another activation than SiLU", "silu"),
    "markov_head_type": ("gated or recurrent Markov heads", "vanilla"),
    "projector_type": ("another head than that of DFlash 2", "dflash", "dflash2"),
    "rope_is_neox_style": ("interleaved RoPE", True),
    "gating": ("gates in the attention", False, "disabled"),  # those of Laguna
}
SPECULATORS = ("dflash", "dflash2", "dspark")
QWEN3: Mapping[str, object] = {  # the defaults of transformers' Qwen3Config, which speculators' files omit
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
ANCHORED = ("Qwen3DSparkModel", "DSparkDraftModel")  # architectures with `sample_from_anchor` by default
NO_FIELDS: dict[str, object] = {}
_KINDS = ("full_attention", "sliding_attention")
_as_layer_kinds = list_of(converter(f"one of {', '.join(_KINDS)}", str, is_valid=_KINDS.__contains__))


def config_of_json(document: object, subject: str) -> DFlashConfig:
    """Return a drafter's configuration from either format."""
    top = Fields(subject, document)
    if top.get("speculators_model_type", as_text, ""):
        return _of_speculators(top, document, subject)
    nested = top.get("dflash_config", as_object, NO_FIELDS)
    fields = Fields(subject, nested, document)
    fields.refuse_all(REFUSED)
    decoder = _decoder(fields, document)
    fields.refuse("draft_vocab_size", "a reduced vocabulary in this format", decoder.vocab_size)
    window, sliding = _sliding(fields, decoder.num_hidden_layers)
    architectures = top.get("architectures", list_of(as_text), tuple[str, ...]())
    if "LiLiCorrDraftModel" in architectures:
        raise ModelError(f"{subject}: drafters with a LiLiCorr head are not supported; use another drafter")
    return check_config(
        DFlashConfig(
            decoder=decoder,
            block_size=fields.need("block_size", as_count),
            mask_token_id=fields.need("mask_token_id", as_count),
            taps=fields.need("target_layer_ids", as_counts),
            window=window,
            sliding=sliding,
            causal=top.get("is_causal", as_flag, fields.get("causal", as_flag, None)),
            from_anchor=fields.get("sample_from_anchor", as_flag, any(name in ANCHORED for name in architectures)),
            **_scales_and_heads(fields),
            **own_fields(
                Fields(subject, {f"{OURS}.{name}": value for name, value in _flat(top.get(OURS, as_object, {}))})
            ),
        ),
        subject,
    )


def _of_speculators(top: Fields, document: object, subject: str) -> DFlashConfig:
    """Return the configuration in speculators' format: its layer n is the input of layer n, our tap n - 1."""
    kind = top.get("speculators_model_type", as_text, "")
    if kind not in SPECULATORS:
        raise ModelError(f"{subject}: speculators_model_type is {kind!r}: expected one of {', '.join(SPECULATORS)}")
    defaults = DFLASH2 if kind == "dflash2" else NO_FIELDS
    shape = top.get("transformer_layer_config", as_object, NO_FIELDS)
    network, fields = Fields(subject, shape, QWEN3), Fields(subject, document, defaults)
    network.refuse("model_type", "another network than Qwen3's", "qwen3")
    for group in (network, fields):
        group.refuse_all(REFUSED)
    decoder = _decoder(network, shape)
    fields.refuse("target_hidden_size", "another hidden size than the target's", decoder.hidden_size)
    window, sliding = _sliding(network, decoder.num_hidden_layers)
    inputs = fields.need("aux_hidden_state_layer_ids", as_counts)
    if 0 in inputs:
        raise ModelError(f"{subject}: aux_hidden_state_layer_ids: drafters that read embeddings (0) are not supported")
    reads_markov = fields.get("confidence_head_with_markov", as_flag, False)
    if fields.get("enable_confidence_head", as_flag, False) and not reads_markov:
        raise ModelError(f"{subject}: confidence heads without confidence_head_with_markov are not supported")
    return check_config(
        DFlashConfig(
            decoder=decoder,
            block_size=fields.get("block_size", as_count, 8),
            mask_token_id=fields.need("mask_token_id", as_count),
            taps=tuple(layer - 1 for layer in inputs),
            window=window,
            sliding=sliding,
            causal=False if fields.get("sliding_window_non_causal", as_flag, False) else None,
            from_anchor=fields.get("sample_from_anchor", as_flag, False),
            **_scales_and_heads(fields),
        ),
        subject,
    )


def _decoder(fields: Fields, document: object) -> DecoderConfig:
    """Return the shape of the network."""
    top = Fields(fields.subject, document)
    rope, scaling = (top.get(name, as_object, NO_FIELDS) for name in ("rope_parameters", "rope_scaling"))
    rotary = Fields(fields.subject, rope, scaling, document)
    rotary.refuse("partial_rotary_factor", "partial RoPE", 1)
    head_dim = fields.need("head_dim", as_count)
    theta = rotary.get("rope_theta", as_number, 0.0) or fields.need("rope_theta", as_number)
    context = fields.get("max_position_embeddings", as_count, 4096)
    factors, magnitude = _yarn(rotary, head_dim, theta, context)
    return DecoderConfig(
        vocab_size=fields.need("vocab_size", as_count),
        hidden_size=fields.need("hidden_size", as_count),
        num_hidden_layers=fields.need("num_hidden_layers", as_layer_count),
        num_attention_heads=fields.need("num_attention_heads", as_count),
        num_key_value_heads=fields.need("num_key_value_heads", as_count),
        head_dim=head_dim,
        intermediate_size=fields.need("intermediate_size", as_count),
        rope_theta=theta,
        rms_norm_eps=fields.get("rms_norm_eps", as_number, 1e-6),
        context_length=context,
        attention_bias=fields.get("attention_bias", as_flag, False),
        rope_factors=factors,
        rope_magnitude=magnitude,
    )


def _yarn(rotary: Fields, head_dim: int, theta: float, context: int) -> tuple[tuple[float, ...], float]:
    """Return the divisors of the RoPE frequencies and the factor of queries and keys, as in transformers."""
    names = ("rope_type", "type")
    if "yarn" not in [rotary.get(name, as_text, "") for name in names]:
        for name in names:
            rotary.refuse(name, "RoPE scaling other than YaRN", "default")
        return (), 1.0
    for name in ("mscale", "mscale_all_dim"):
        rotary.refuse(name, "a YaRN magnitude other than attention_factor")
    factor = rotary.need("factor", as_number)
    original = rotary.get("original_max_position_embeddings", as_count, context)
    outwards = rotary.get("truncate", as_flag, True)
    betas = rotary.get("beta_fast", as_number, BETA_FAST), rotary.get("beta_slow", as_number, BETA_SLOW)
    divisors = yarn_factors(rotary.subject, head_dim, theta, factor, original, *betas, round_outwards=outwards)
    return divisors, rotary.get("attention_factor", as_number, yarn_magnitude(factor))


def _scales_and_heads(fields: Fields) -> dict[str, Any]:
    return {
        "embedding_scale": fields.get("input_embedding_scale", as_number, 1.0),
        "logit_scale": fields.get("output_multiplier", as_number, 1.0),
        "markov_rank": fields.get("markov_rank", as_count, 0),
        "has_confidence_head": fields.get("enable_confidence_head", as_flag, False),
        **shared_fields(fields),
    }


def shared_fields(fields: Fields) -> dict[str, Any]:
    """Return the fields that have one name in config.json and in a GGUF."""
    return {
        "softcap": fields.get("final_logit_softcapping", as_number, 0.0),
        "conv_kernel": fields.get("conv_kernel_size", as_count, 0),
        "conv_group": fields.get("conv_group_size", as_count, 0),
        "selector_rank": fields.get("selector_rank", as_count, 0),
        "selector_top_k": fields.get("selector_top_k", as_count, 0),
    }


def _flat(fields: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the fields; a field of a nested object is named "object.field"."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", inner_value) for inner, inner_value in value.items())
        else:
            yield name, value


def own_fields(fields: Fields) -> dict[str, Any]:
    """Return the fields that only localdflash writes."""
    name, kind, digest = (fields.get(f"{OURS}.target.{field}", as_text, "") for field in ("name", "kind", "digest"))
    tau = fields.get(f"{OURS}.target.tau", as_number, 0.0)
    return {
        "short": fields.get(SHORT_KEY, as_counts, tuple[int, ...]()),
        "trained_for": TrainedFor(name, kind, digest, tau) if digest else None,
    }


def _sliding(fields: Fields, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """Return the window and the sliding layers: all with `use_swa`, none with `use_sliding_window: false`."""
    types = fields.get("layer_types", _as_layer_kinds, ("full_attention",) * layers)
    if len(types) != layers:
        raise ModelError(f"{fields.subject}: layer_types: expected {layers} layers, found {len(types)}")
    everywhere = fields.get("use_swa", as_flag, False)
    sliding = tuple(everywhere or kind == "sliding_attention" for kind in types)
    if not any(sliding) or not (everywhere or fields.get("use_sliding_window", as_flag, True)):
        return None, ()
    return fields.get("swa_window_size", as_count, 0) or fields.need("sliding_window", as_count), sliding
