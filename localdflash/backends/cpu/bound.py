"""What the library's structs point to: packed arrays, caches, the shape of a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.cpu_kv_cache import KeysAndValues
from localdflash.backends.cpu.cpu_library import address, bound_matrix
from localdflash.backends.cpu.packed_model import CONVOLVED, MATRICES, VECTORS, Floats, PackedLayer
from localdflash.backends.cpu.states import DeltaStates
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig


def rope_tables(config: DecoderConfig, capacity: int) -> tuple[Floats, Floats]:
    """Cosines and sines [capacity, rotary_dim / 2] of the rotate-half RoPE, in float32 as the reference decoder; of
    YaRN they are longer than those of angles.
    """
    size = config.rotary_dim or config.head_dim
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    divisors = np.array(config.rope_factors or 1.0, np.float32)
    frequencies = np.power(np.float32(config.rope_theta), -exponents) / divisors
    angles = np.arange(capacity, dtype=np.float32)[:, None] * frequencies
    magnitude = np.float32(config.rope_magnitude)
    return np.cos(angles) * magnitude, np.sin(angles) * magnitude


def bound_layers(
    layers: Sequence[PackedLayer],
    cache: KeysAndValues,
    causal: Sequence[bool],
    windows: Sequence[int],
    states: DeltaStates | None = None,
) -> Any:
    """The blocks as an array of structs; whoever keeps it must keep layers, cache and states too."""
    bound = (cpu_library.LayerStruct * len(layers))()
    for i, (to, layer) in enumerate(zip(bound, layers, strict=True)):
        for name in VECTORS:
            setattr(to, name, address(getattr(layer, name)))
        for name in MATRICES:
            setattr(to, name, bound_matrix(getattr(layer, name)))
        for name in CONVOLVED:
            changes, base = getattr(layer, f"{name}_changes"), getattr(layer, f"{name}_base")
            setattr(to, f"{name}_conv", cpu_library.ConvolutionStruct(bound_matrix(changes), address(base)))
        to.causal, to.window = causal[i], windows[i]
        nets = sum(below.mixed is not None for below in layers[:i])
        if layer.mixed is not None and states:
            to.delta = states.net(nets)
        else:
            to.cache = cache.bound(i - nets)
    return bound


def bound_model(config: DecoderConfig, blocks: int) -> cpu_library.ModelStruct:
    """The struct of a model's shape; weights and memory are the caller's to fill in."""
    model = cpu_library.ModelStruct()
    model.blocks, model.hidden = blocks, config.hidden_size
    model.heads, model.kv_heads, model.head_dim = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    model.inner = config.moe_intermediate_size if config.num_experts else config.intermediate_size
    model.experts, model.chosen = config.num_experts, config.num_experts_per_tok
    model.normalise, model.vocabulary = config.norm_topk_prob, config.vocab_size
    model.shared, model.gated = config.shared_intermediate_size, config.output_gate
    model.rotary = config.rotary_dim or config.head_dim
    if d := config.delta:
        model.delta = cpu_library.DeltaShapeStruct(d.k_heads, d.v_heads, d.k_dim, d.v_dim, d.kernel)
    model.eps, model.swiglu_limit = config.rms_norm_eps, config.swiglu_limit
    model.embedding_scale = model.logit_scale = 1.0
    return model


def bound_drafter(config: DFlashConfig) -> cpu_library.ModelStruct:
    """The same for a drafter, of whose matrices only those have a shape that its workspace depends on."""
    c, model = config, bound_model(config.decoder, config.decoder.num_hidden_layers)
    model.embedding_scale, model.logit_scale, model.softcap = c.embedding_scale, c.logit_scale, c.softcap
    model.tap_count, model.fuse.n = len(c.taps), c.decoder.hidden_size
    model.conv_kernel, model.conv_group = c.conv_kernel, c.conv_group
    model.slots.markov_w2.k, model.slots.selector.n = c.markov_rank, c.selector_rank
    model.slots.candidates, model.slots.first = c.selector_top_k, c.first_slot
    return model


def check_shape(config: DecoderConfig) -> str:
    """Why the kernels cannot run a decoder, or ""."""
    c = config
    if c.head_dim % 32 or c.head_dim > 512:
        return f"heads of {c.head_dim} (they run multiples of 32 up to 512)"
    if c.num_experts > 512 or c.num_experts_per_tok > 32:
        return f"{c.num_experts_per_tok} of {c.num_experts} experts (they run up to 32 of 512)"
    if (d := c.delta) and (d.k_dim % 16 or d.v_dim % 32 or d.v_heads > 256 or d.v_heads % d.k_heads):
        return f"delta nets of {d.k_heads} and {d.v_heads} heads of {d.k_dim} and {d.v_dim}"
    return ""
