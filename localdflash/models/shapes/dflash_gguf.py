"""A drafter's configuration from a `dflash` GGUF: llama.cpp's metadata and tensors, DSpark and DFlash 2 among them.

What is only our own (see `dflash_json`) stands there as metadata `localdflash.*`.
"""

import struct

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model
from localdflash.models.shapes.config_fields import (
    Fields,
    as_flag,
    as_flags,
    as_layer_count,
    as_number,
    as_optional_flag,
    as_text,
    as_whole,
    as_wholes,
)
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import SHORT_HEAD, SHORT_KEY, DFlashConfig, checked
from localdflash.models.shapes.dflash_json import our_own
from localdflash.models.shapes.yarn import BETA_FAST, BETA_SLOW, makes_sense, yarn_factors, yarn_magnitude
from localdflash.models.weights import gguf

REFUSED = {
    "attention.value_scale": "scaled attention values",
    "attention.scale": "scaled attention",
    "hyper_connection.count": "hyper-connections",
    "rope.scaling.yarn_log_multiplier": "YaRN's magnitude told otherwise than by its factor",
}
NEUTRAL = {  # what is refused unless it is one of these
    "hidden_activation": ("another activation than SiLU", ("silu",)),
    "rope.scaling.attn_factor": ("YaRN's magnitude told otherwise than by its factor", (0.0, 1.0)),
    "rope.scaling.yarn_attn_factor": ("YaRN's magnitude told otherwise than by its factor", (0.0, 1.0)),
    "rope.scaling.yarn_ext_factor": ("YaRN in part", (0.0, 1.0)),
}


def config_of_gguf(header: gguf.GGUFHeader) -> DFlashConfig:
    """Return a drafter's configuration from a `dflash` GGUF's metadata."""
    where = str(header.path)
    if header.architecture != "dflash":
        raise ModelError(f"{where}: architecture {header.architecture!r} is no DFlash drafter (expected 'dflash')")
    fields = Fields(where, {name.removeprefix("dflash."): value for name, value in header.metadata.items()})
    for name, meaning in REFUSED.items():
        fields.refuse(name, meaning)
    for name, (meaning, neutral) in NEUTRAL.items():
        fields.refuse(name, meaning, neutral)
    window = fields.get("attention.sliding_window", as_whole, 0)
    markov = header.tensors.get("markov_w1.weight")
    found = {
        **our_own(fields),
        "own_embedding": "token_embd.weight" in header.tensors,
        "own_head": "output.weight" in header.tensors and SHORT_KEY not in header.metadata,
        "markov_rank": markov.shape[-1] if markov else 0,
        "judges": "conf_proj.weight" in header.tensors,
    }
    if SHORT_HEAD[0] in header.tensors and not found["short"]:
        found["short"] = _ids(header)
    return checked(
        DFlashConfig(
            decoder=_decoder(header, fields),
            block_size=fields.need("block_size", as_whole),
            mask_token_id=fields.need("tokenizer.ggml.mask_token_id", as_whole),
            taps=tuple(layer - 1 for layer in fields.need("target_layers", as_wholes)),  # llama.cpp counts layer inputs
            window=window or None,
            sliding=fields.need("attention.sliding_window_pattern", as_flags) if window else (),
            causal=fields.get("attention.causal", as_optional_flag, None),
            embedding_scale=fields.get("embedding_scale", as_number, 1.0),
            logit_scale=fields.get("logit_scale", as_number, 1.0),
            softcap=fields.get("final_logit_softcapping", as_number, 0.0),
            from_anchor=fields.get("sample_from_anchor", as_flag, markov is not None),
            conv_kernel=fields.get("conv_kernel_size", as_whole, 0),
            conv_group=fields.get("conv_group_size", as_whole, 0),
            selector_rank=fields.get("selector_rank", as_whole, 0),
            selector_top_k=fields.get("selector_top_k", as_whole, 0),
            **found,
        ),
        where,
    )


def _decoder(header: gguf.GGUFHeader, fields: Fields) -> DecoderConfig:
    head_dim = fields.need("attention.key_length", as_whole)
    fields.refuse("rope.dimension_count", "partial RoPE", (head_dim,))
    theta = fields.get("rope.freq_base", as_number, 1e4)
    factors, magnitude = _yarn(fields, head_dim, theta)
    return DecoderConfig(
        vocab_size=fields.need("tokenizer.ggml.tokens", len),
        hidden_size=fields.need("embedding_length", as_whole),
        num_hidden_layers=fields.need("block_count", as_layer_count),
        num_attention_heads=fields.need("attention.head_count", as_whole),
        num_key_value_heads=fields.need("attention.head_count_kv", as_whole),
        head_dim=head_dim,
        intermediate_size=fields.need("feed_forward_length", as_whole),
        rope_theta=theta,
        rms_norm_eps=fields.need("attention.layer_norm_rms_epsilon", as_number),
        context_length=fields.need("context_length", as_whole),
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        rope_factors=factors,
        rope_magnitude=magnitude,
    )


def _yarn(fields: Fields, head_dim: int, theta: float) -> tuple[tuple[float, ...], float]:
    """Divisors of RoPE's frequencies, and what queries and keys are stretched by; rounded as llama.cpp does."""
    if fields.get("rope.scaling.type", as_text, "none") != "yarn":
        fields.refuse("rope.scaling.type", "RoPE scaled otherwise than by YaRN", ("none",))
        return (), 1.0
    factor = fields.need("rope.scaling.factor", as_number)
    original = fields.get("rope.scaling.original_context_length", as_whole, 0) or fields.need(
        "context_length", as_whole
    )
    fast = fields.get("rope.scaling.yarn_beta_fast", as_number, BETA_FAST)
    slow = fields.get("rope.scaling.yarn_beta_slow", as_number, BETA_SLOW)
    if not makes_sense(head_dim, theta, factor, original, fast, slow):
        raise ModelError(f"{fields.where}: YaRN by a factor of {factor} over {original} tokens makes no sense")
    return yarn_factors(head_dim, theta, factor, original, fast, slow, whole=True), yarn_magnitude(factor)


def _ids(header: gguf.GGUFHeader) -> tuple[int, ...]:
    """Return the tokens of the rows of its own head."""
    info = header.tensors[SHORT_HEAD[0]]
    if info.ggml_type.name != "I64" or len(info.shape) != 1:
        raise ModelError(f"{header.path}: tensor {info.name} is no list of tokens; convert the model again")
    with open_model(header.path) as (stream, _):
        stream.seek(info.offset)
        return tuple(token for (token,) in struct.iter_unpack("<q", stream.read(info.nbytes)))


def own_tensors(header: gguf.GGUFHeader) -> dict[str, gguf.TensorInfo]:
    """The tensors of a GGUF drafter without those that only llama.cpp reads: the short head, of which others take the
    target's rows, and the list of ids.
    """
    left_out = SHORT_HEAD if SHORT_KEY in header.metadata else SHORT_HEAD[:1]
    return {name: info for name, info in header.tensors.items() if name not in left_out}
