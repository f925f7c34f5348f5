"""The shape of any GGUF that our CPU engine runs: those of `gguf_config`, and gpt-oss. Imports no torch."""

import math
from collections.abc import Sequence

from localdflash.errors import ModelError
from localdflash.model.decoder_config import DecoderConfig
from localdflash.model.gguf_config import MOST_LAYERS, decoder_config, positive_of, size_of
from localdflash.weights.gguf import GGUFHeader

BETA_FAST, BETA_SLOW = 32.0, 1.0  # turns within the original context: of what YaRN leaves as it is, and scales in full
SWIGLU_LIMIT = 7.0  # of gpt-oss, which no file says
PATTERN = 2  # of gpt-oss: every second layer sees all keys
NEUTRAL = {  # metadata that llama.cpp would follow, and what they are where they mean nothing
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "expert_weights_scale": 1.0,
    "expert_shared_count": 0,
}


def target_config(header: GGUFHeader) -> DecoderConfig:
    """The shape of a GGUF's decoder; ModelError names what is missing or not supported."""
    return _gpt_oss(header) if header.architecture == "gpt-oss" else decoder_config(header)


def _gpt_oss(header: GGUFHeader) -> DecoderConfig:
    refuse_others(header, NEUTRAL)
    heads, kv_heads = size_of(header, "attention.head_count"), size_of(header, "attention.head_count_kv")
    if heads % kv_heads:
        raise ModelError(f"{header.path}: {heads} heads cannot share {kv_heads} key-value heads; convert it again")
    head_dim, theta = size_of(header, "attention.key_length"), positive_of(header, "rope.freq_base")
    if head_dim % 2 or number(header, "rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{header.path}: RoPE turns whole heads of even size only here: use llama.cpp")
    if number(header, "rope.freq_base_swa", theta) != theta:
        raise ModelError(f"{header.path}: layers with a window and a RoPE of their own do not run here: use llama.cpp")
    experts, factor = size_of(header, "expert_count"), _yarn_factor(header)
    return DecoderConfig(
        vocab_size=vocabulary_of(header),
        hidden_size=size_of(header, "embedding_length"),
        num_hidden_layers=size_of(header, "block_count", MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=0,
        rope_theta=theta,
        rms_norm_eps=positive_of(header, "attention.layer_norm_rms_epsilon"),
        context_length=size_of(header, "context_length"),
        tie_word_embeddings="output.weight" not in header.tensors,
        attention_bias=True,
        qk_norm=False,
        rope_factors=_yarn_factors(header, factor, theta, head_dim) if factor > 1 else (),
        num_experts=experts,
        num_experts_per_tok=size_of(header, "expert_used_count", experts),
        moe_intermediate_size=size_of(header, "expert_feed_forward_length"),
        norm_topk_prob=True,  # a softmax over the chosen ones
        rope_magnitude=1 + 0.1 * math.log(factor) if factor > 1 else 1.0,
        windows=_windows(header),
        sinks=True,
        expert_bias=True,
        swiglu_limit=SWIGLU_LIMIT,
    )


def refuse_others(header: GGUFHeader, neutral: dict[str, float]) -> None:
    """Raise ModelError for metadata whose meaning the engine would miss."""
    for name, nothing in neutral.items():
        if (found := number(header, name, nothing)) not in (nothing, 0.0):
            key = f"{header.architecture}.{name}"
            raise ModelError(f"{header.path}: {key} is {found}, which does not run here: use llama.cpp")


def number(header: GGUFHeader, name: str, default: float) -> float:
    """A number in the metadata of an architecture, or the default."""
    key = f"{header.architecture}.{name}"
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"{header.path}: {key} is {str(value)[:60]!r}, expected a number; convert the model again")
    return value


def vocabulary_of(header: GGUFHeader) -> int:
    """How many tokens there are."""
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
    """What RoPE's frequencies are divided by: 1 for those that turn fast, `factor` for slow ones, a mean between.

    Where one ends and the other begins is not rounded to whole frequencies, as in the model's own code (llama.cpp
    rounds).
    """
    half, context = head_dim // 2, size_of(header, "rope.scaling.original_context_length", 1 << 30)

    def frequency(turns: float) -> float:
        """The one that turns so often within the original context."""
        return half * math.log(context / (turns * 2 * math.pi)) / math.log(theta)

    fast = number(header, "rope.scaling.yarn_beta_fast", BETA_FAST)
    slow = number(header, "rope.scaling.yarn_beta_slow", BETA_SLOW)
    low, high = max(frequency(fast), 0.0), min(frequency(slow), head_dim - 1.0)
    ramp = [min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0) for i in range(half)]
    return tuple(1 / (scaled / factor + 1 - scaled) for scaled in ramp)


def _windows(header: GGUFHeader) -> tuple[int, ...]:
    """The window of each layer: the last one of every two, or of what the file says instead, has none."""
    blocks, window = size_of(header, "block_count", MOST_LAYERS), size_of(header, "attention.sliding_window", 1 << 30)
    key = "gpt-oss.attention.sliding_window_pattern"
    pattern = header.metadata.get(key, PATTERN)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        return tuple(window if i % pattern < pattern - 1 else 0 for i in range(blocks))
    if isinstance(pattern, Sequence) and not isinstance(pattern, str) and len(pattern) == blocks:
        return tuple(window if slides else 0 for slides in pattern)
    raise ModelError(f"{header.path}: {key} is {str(pattern)[:60]!r}, which makes no sense here; convert it again")
