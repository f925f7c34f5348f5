"""The shape of a GGUF that our CPU engine runs: those of `gguf_config`, gpt-oss, Qwen3.5 and 3.6. Imports no torch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig, DeltaShape
from localdflash.models.shapes.gguf_config import ARCHITECTURES, decoder_config, positive_of, scales_rope, size_of
from localdflash.models.shapes.yarn import BETA_FAST, BETA_SLOW, makes_sense, yarn_factors, yarn_magnitude
from localdflash.models.weights.gguf import GGUFHeader
from localdflash.models.weights.gguf_limits import MOST_LAYERS

SWIGLU_LIMIT = 7.0  # of gpt-oss, which no file says
INTERVAL = 4  # of Qwen3.5: every fourth layer is one of attention
MOST_INPUTS = 16  # of a convolution
PATTERN = 2  # of gpt-oss: every second layer sees all keys
NEUTRAL = {  # metadata that llama.cpp would follow, and what they are where they mean nothing
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "expert_weights_scale": 1.0,
}


def target_config(header: GGUFHeader) -> DecoderConfig:
    """Return the shape of a GGUF's decoder; ModelError names what is missing or not supported."""
    kind = header.architecture
    if kind in ARCHITECTURES:
        return decoder_config(header)
    if kind not in READERS:
        known = ", ".join(map(repr, (*ARCHITECTURES, *READERS)))
        raise ModelError(f"{header.path}: only {known} models run here, not {kind!r}: use llama.cpp")
    return READERS[kind](header)


def blocks_of(header: GGUFHeader) -> int:
    """Return how many blocks a file has, those that predict tokens further ahead included."""
    return size_of(header, "block_count", MOST_LAYERS)


def _gpt_oss(header: GGUFHeader) -> DecoderConfig:
    common = _common(header)
    head_dim, theta = common.head_dim, common.rope_theta
    if number(header, "rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{header.path}: RoPE turns whole heads of even size only here: use llama.cpp")
    if number(header, "rope.freq_base_swa", theta) != theta:
        raise ModelError(f"{header.path}: layers with a window and a RoPE of their own do not run here: use llama.cpp")
    factor = _yarn_factor(header)
    return replace(
        _mixture(header, common),
        attention_bias=True,
        qk_norm=False,
        rope_factors=_yarn_factors(header, factor, theta, head_dim) if factor > 1 else (),
        rope_magnitude=yarn_magnitude(factor),
        windows=_windows(header),
        sinks=True,
        expert_bias=True,
        swiglu_limit=SWIGLU_LIMIT,
    )


def _qwen35(header: GGUFHeader) -> DecoderConfig:
    common = _common(header)
    if scales_rope(header):
        raise ModelError(f"{header.path}: scaled RoPE is not supported here: use llama.cpp")
    ahead = int(number(header, "nextn_predict_layers", 0))
    layers = common.num_hidden_layers - ahead
    rotary = size_of(header, "rope.dimension_count", common.head_dim)
    if layers < 1 or rotary % 2:
        raise ModelError(f"{header.path}: its numbers of layers or of turned channels make no sense; convert it again")
    heads, values = size_of(header, "ssm.time_step_rank"), size_of(header, "ssm.inner_size")
    config = replace(
        common,
        num_hidden_layers=layers,
        rotary_dim=rotary,
        output_gate=True,
        delta=DeltaShape(
            k_heads=size_of(header, "ssm.group_count"),
            v_heads=heads,
            k_dim=size_of(header, "ssm.state_size"),
            v_dim=values // heads,
            kernel=size_of(header, "ssm.conv_kernel", MOST_INPUTS),
        ),
        recurrent=_recurrent(header, layers),
    )
    if header.architecture == "qwen35":
        return replace(config, intermediate_size=size_of(header, "feed_forward_length"))
    shared = size_of(header, "expert_shared_feed_forward_length")
    return replace(_mixture(header, config), shared_intermediate_size=shared)


READERS: dict[str, Callable[[GGUFHeader], DecoderConfig]] = {
    "gpt-oss": _gpt_oss,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35,
}


def _common(header: GGUFHeader) -> DecoderConfig:
    """Return what the metadata of all of them says, without an MLP."""
    refuse_others(header)
    heads, kv_heads = size_of(header, "attention.head_count"), size_of(header, "attention.head_count_kv")
    if heads % kv_heads:
        raise ModelError(f"{header.path}: {heads} heads cannot share {kv_heads} key-value heads; convert it again")
    head_dim = size_of(header, "attention.key_length")
    if head_dim % 2:
        raise ModelError(f"{header.path}: RoPE turns heads of even size only here: use llama.cpp")
    return DecoderConfig(
        vocab_size=_vocabulary(header),
        hidden_size=size_of(header, "embedding_length"),
        num_hidden_layers=blocks_of(header),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=0,
        rope_theta=positive_of(header, "rope.freq_base"),
        rms_norm_eps=positive_of(header, "attention.layer_norm_rms_epsilon"),
        context_length=size_of(header, "context_length"),
        tie_word_embeddings="output.weight" not in header.tensors,
    )


def _mixture(header: GGUFHeader, config: DecoderConfig) -> DecoderConfig:
    experts = size_of(header, "expert_count")
    return replace(
        config,
        num_experts=experts,
        num_experts_per_tok=size_of(header, "expert_used_count", experts),
        moe_intermediate_size=size_of(header, "expert_feed_forward_length"),
        norm_topk_prob=True,  # of gpt-oss a softmax over the chosen ones, which is the same
    )


def _recurrent(header: GGUFHeader, layers: int) -> tuple[bool, ...]:
    """Which layers are delta nets: all but every fourth, or what the file says instead."""
    key = f"{header.architecture}.attention.recurrent_layers"
    said = header.metadata.get(key)
    if said is None:
        interval = int(number(header, "full_attention_interval", INTERVAL))
        return tuple(interval < 1 or (i + 1) % interval != 0 for i in range(layers))
    if not isinstance(said, Sequence) or isinstance(said, str) or len(said) < layers:
        raise ModelError(f"{header.path}: {key} is {str(said)[:60]!r}, which makes no sense here; convert it again")
    return tuple(map(bool, said[:layers]))


def refuse_others(header: GGUFHeader) -> None:
    """Raise ModelError for metadata whose meaning the engine would miss."""
    for name, nothing in NEUTRAL.items():
        if (found := number(header, name, nothing)) not in (nothing, 0.0):
            key = f"{header.architecture}.{name}"
            raise ModelError(f"{header.path}: {key} is {found}, which does not run here: use llama.cpp")


def number(header: GGUFHeader, name: str, default: float) -> float:
    """Return a number in the metadata of an architecture, or the default."""
    key = f"{header.architecture}.{name}"
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"{header.path}: {key} is {str(value)[:60]!r}, expected a number; convert the model again")
    return value


def _vocabulary(header: GGUFHeader) -> int:
    """Return how many tokens there are."""
    if "token_embd.weight" not in header.tensors:
        raise ModelError(f"{header.path}: tensor token_embd.weight is missing; convert the model again")
    return header.tensors["token_embd.weight"].shape[0]


def _yarn_factor(header: GGUFHeader) -> float:
    """By how much YaRN stretches the context; 1 without it."""
    kind = header.metadata.get("gpt-oss.rope.scaling.type", "none")
    if kind == "none":
        return 1.0
    if kind != "yarn":
        raise ModelError(f"{header.path}: RoPE scaled by {str(kind)[:60]!r} does not run here: use llama.cpp")
    return positive_of(header, "rope.scaling.factor")


def _yarn_factors(header: GGUFHeader, factor: float, theta: float, head_dim: int) -> tuple[float, ...]:
    """See `yarn_factors`; nothing is rounded to whole frequencies, as in the model's own code (llama.cpp rounds)."""
    context = size_of(header, "rope.scaling.original_context_length", 1 << 30)
    fast = number(header, "rope.scaling.yarn_beta_fast", BETA_FAST)
    slow = number(header, "rope.scaling.yarn_beta_slow", BETA_SLOW)
    if not makes_sense(head_dim, theta, factor, context, fast, slow):
        raise ModelError(f"{header.path}: YaRN by a factor of {factor} over {context} tokens makes no sense")
    return yarn_factors(head_dim, theta, factor, context, fast, slow)


def _windows(header: GGUFHeader) -> tuple[int, ...]:
    """Return the window of each layer: the last one of every two, or of what the file says instead, has none."""
    blocks, window = blocks_of(header), size_of(header, "attention.sliding_window", 1 << 30)
    key = "gpt-oss.attention.sliding_window_pattern"
    pattern = header.metadata.get(key, PATTERN)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        return tuple(window if i % pattern < pattern - 1 else 0 for i in range(blocks))
    if isinstance(pattern, Sequence) and not isinstance(pattern, str) and len(pattern) == blocks:
        return tuple(window if slides else 0 for slides in pattern)
    raise ModelError(f"{header.path}: {key} is {str(pattern)[:60]!r}, which makes no sense here; convert it again")
