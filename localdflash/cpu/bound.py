"""What the library's structs point to: caches of keys and values, packed arrays, the shape of a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.cpu import library
from localdflash.cpu.arrays import aligned
from localdflash.cpu.library import address, bound_matrix
from localdflash.cpu.model import MATRICES, VECTORS, Floats, PackedLayer
from localdflash.cpu.states import DeltaStates
from localdflash.model.decoder_config import DecoderConfig

KEYS = 16  # keys that lie together, see formats.h
Halves = NDArray[np.float16]


class KeysAndValues:
    """The cache of a stack of blocks: room for at least `capacity` positions."""

    def __init__(self, blocks: int, config: DecoderConfig, capacity: int) -> None:
        heads, size = config.num_key_value_heads, config.head_dim
        self.capacity = -(-capacity // KEYS) * KEYS
        self.keys: Halves = aligned((blocks, heads, self.capacity // KEYS, size, KEYS), np.float16)
        self.values: Halves = aligned((blocks, heads, self.capacity, size), np.float16)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.values.nbytes

    def clear(self, start: int, stop: int) -> None:
        """Put zeros at the positions from `start` up to `stop`."""
        at = np.arange(start, stop)
        self.keys[:, :, at // KEYS, :, at % KEYS] = 0
        self.values[:, :, start:stop] = 0

    def save(self, length: int) -> bytes:
        """Keys and values of the first `length` positions."""
        return self.keys[:, :, : -(-length // KEYS)].tobytes() + self.values[:, :, :length].tobytes()

    def load(self, state: bytes, length: int) -> None:
        """Restore saved ones; ValueError if they are not of this shape."""
        keys, values = self.keys[:, :, : -(-length // KEYS)], self.values[:, :, :length]
        saved = np.frombuffer(state, np.float16)
        keys[...] = saved[: keys.size].reshape(keys.shape)
        values[...] = saved[keys.size :].reshape(values.shape)


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
    bound = (library.LayerStruct * len(layers))()
    for i, (to, layer) in enumerate(zip(bound, layers, strict=True)):
        for name in VECTORS:
            setattr(to, name, address(getattr(layer, name)))
        for name in MATRICES:
            setattr(to, name, bound_matrix(getattr(layer, name)))
        to.causal, to.window = causal[i], windows[i]
        nets = sum(below.mixed is not None for below in layers[:i])
        if layer.mixed is not None and states:
            to.delta = states.net(nets)
        else:
            to.keys, to.values = address(cache.keys[i - nets]), address(cache.values[i - nets])
    return bound


def bound_model(config: DecoderConfig, blocks: int) -> library.ModelStruct:
    """The struct of a model's shape; weights and memory are the caller's to fill in."""
    model = library.ModelStruct()
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
        model.delta = library.DeltaShapeStruct(d.k_heads, d.v_heads, d.k_dim, d.v_dim, d.kernel)
    model.eps, model.swiglu_limit = config.rms_norm_eps, config.swiglu_limit
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
