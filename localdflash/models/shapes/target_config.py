"""Reads a GGUF's shape for the CPU engine: models of `gguf_config`, gpt-oss, Qwen3.5 and 3.6. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig, DeltaShape
from localdflash.models.shapes.gguf_config import (
    ARCHITECTURES,
    check_whole_heads,
    common_config,
    count_layers,
    decoder_config,
    number,
    refuse_scaled_rope,
    size_of,
    unsupported,
    with_experts,
    yarn_of,
)
from localdflash.models.weights.gguf import GGUFHeader

SWIGLU_LIMIT = 7.0  # in gpt-oss; not in the metadata
INTERVAL = 4  # in Qwen3.5, every fourth layer has attention
MAX_CONV_KERNEL = 16  # inputs of a convolution
PATTERN = 2  # in gpt-oss, every second layer has no window
NEUTRAL = {  # keys that llama.cpp applies and the CPU engine does not -> their neutral value
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
        raise unsupported(header, *ARCHITECTURES, *READERS)
    for name, neutral in NEUTRAL.items():
        if (value := number(header, name, neutral)) not in (neutral, 0.0):
            raise ModelError(f"{header.path}: {kind}.{name} {value} is not supported here; use llama.cpp")
    return READERS[kind](header)


def _gpt_oss(header: GGUFHeader) -> DecoderConfig:
    common = common_config(header)
    check_whole_heads(header, common.head_dim)
    if number(header, "rope.freq_base_swa", common.rope_theta) != common.rope_theta:
        raise ModelError(f"{header.path}: a separate RoPE of sliding layers is not supported here; use llama.cpp")
    return replace(
        # The model's own code does not round to whole frequencies; llama.cpp does.
        yarn_of(header, with_experts(header, common), round_outwards=False),
        attention_bias=True,
        qk_norm=False,
        windows=_windows(header),
        sinks=True,
        expert_bias=True,
        swiglu_limit=SWIGLU_LIMIT,
    )


def _qwen35(header: GGUFHeader) -> DecoderConfig:
    common = common_config(header)
    refuse_scaled_rope(header)
    prediction_layers = int(number(header, "nextn_predict_layers", 0))
    layers = common.num_hidden_layers - prediction_layers
    rotary = size_of(header, "rope.dimension_count", common.head_dim)
    if layers < 1 or rotary % 2:
        raise ModelError(
            f"{header.path}: invalid layer count ({layers}) or rotary dimension ({rotary}); convert it again"
        )
    heads, value_width = size_of(header, "ssm.time_step_rank"), size_of(header, "ssm.inner_size")
    config = replace(
        common,
        num_hidden_layers=layers,
        rotary_dim=rotary,
        output_gate=True,
        delta=DeltaShape(
            k_heads=size_of(header, "ssm.group_count"),
            v_heads=heads,
            k_dim=size_of(header, "ssm.state_size"),
            v_dim=value_width // heads,
            kernel=size_of(header, "ssm.conv_kernel", MAX_CONV_KERNEL),
        ),
        recurrent=_recurrent(header, layers),
    )
    if header.architecture == "qwen35":
        return replace(config, intermediate_size=size_of(header, "feed_forward_length"))
    shared = size_of(header, "expert_shared_feed_forward_length")
    return replace(with_experts(header, config), shared_intermediate_size=shared)


READERS: dict[str, Callable[[GGUFHeader], DecoderConfig]] = {
    "gpt-oss": _gpt_oss,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35,
}


def _recurrent(header: GGUFHeader, layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it is a delta net: all except every fourth, unless the metadata differs."""
    key = f"{header.architecture}.attention.recurrent_layers"
    flags = header.metadata.get(key)
    if flags is None:
        interval = int(number(header, "full_attention_interval", INTERVAL))
        return tuple(interval < 1 or (i + 1) % interval != 0 for i in range(layers))
    if not isinstance(flags, Sequence) or isinstance(flags, str) or len(flags) < layers:
        raise ModelError(f"{header.path}: {key}: expected {layers} flags, found {str(flags)[:60]!r}; convert it again")
    return tuple(map(bool, flags[:layers]))


def _windows(header: GGUFHeader) -> tuple[int, ...]:
    """Return each layer's window in tokens, 0 for every second layer, unless the file has another pattern."""
    layers, window = count_layers(header), size_of(header, "attention.sliding_window", 1 << 30)
    key = "gpt-oss.attention.sliding_window_pattern"
    pattern = header.metadata.get(key, PATTERN)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        return tuple(window if i % pattern < pattern - 1 else 0 for i in range(layers))
    if isinstance(pattern, Sequence) and not isinstance(pattern, str) and len(pattern) == layers:
        return tuple(window if slides else 0 for slides in pattern)
    raise ModelError(f"{header.path}: {key}: expected {layers} flags, found {str(pattern)[:60]!r}; convert it again")
