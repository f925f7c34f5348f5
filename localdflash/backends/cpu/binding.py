"""Bindings of packed weights: models as named parts, and the ctypes structs through which the kernels read them.

Opening a packed model imports no torch.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from localdflash.backends.cpu.cpu_kv_cache import KVCache
from localdflash.backends.cpu.cpu_library import (
    ConvolutionStruct,
    DeltaNetStruct,
    DeltaShapeStruct,
    LayerStruct,
    MatrixStruct,
    ModelStruct,
    address,
)
from localdflash.backends.cpu.model_source import CONVOLVED, check_drafter_file, check_target_file
from localdflash.backends.cpu.packed_file import Progress, open_packed
from localdflash.backends.cpu.packing import Floats, PackedMatrix
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig


def _sum_bytes(packed: Any) -> int:
    """Return the size of a dataclass's fields that are set, in bytes."""
    parts = (getattr(packed, field.name) for field in fields(packed))
    return sum(part.nbytes for part in parts if part is not None)


@dataclass(frozen=True)
class PackedLayer:
    """Block of a decoder. In a mixture gate, up and down hold all experts, and `router` is set."""

    attention_norm: Floats  # [hidden]
    mlp_norm: Floats  # [hidden]
    output: PackedMatrix  # [hidden, heads * head_dim], or [hidden, values] of a delta net
    gate: PackedMatrix  # [inner, hidden]
    up: PackedMatrix  # [inner, hidden]
    down: PackedMatrix  # [hidden, inner]
    query: PackedMatrix | None = None  # [heads * head_dim, hidden], in rotate-half order; a head's gate follows it
    key: PackedMatrix | None = None  # [kv_heads * head_dim, hidden], likewise without gates
    value: PackedMatrix | None = None  # [kv_heads * head_dim, hidden]; these three are None in a delta net
    query_norm: Floats | None = None  # [head_dim]; Llama has none
    key_norm: Floats | None = None  # [head_dim]
    router: Floats | None = None  # [experts, hidden]
    query_bias: Floats | None = None  # [heads * head_dim]
    key_bias: Floats | None = None  # [kv_heads * head_dim]
    value_bias: Floats | None = None  # [kv_heads * head_dim]
    output_bias: Floats | None = None  # [hidden]
    router_bias: Floats | None = None  # [experts]
    gate_bias: Floats | None = None  # [experts, inner]
    up_bias: Floats | None = None  # [experts, inner]
    down_bias: Floats | None = None  # [experts, hidden]
    sinks: Floats | None = None  # [heads], of gpt-oss
    shared_gate: PackedMatrix | None = None  # [shared, hidden], of the expert that every row has
    shared_up: PackedMatrix | None = None  # [shared, hidden]
    shared_down: PackedMatrix | None = None  # [hidden, shared]
    shared_router: Floats | None = None  # [hidden]
    mixed: PackedMatrix | None = None  # [mixed, hidden], of a delta net: queries, keys and values
    mixed_gate: PackedMatrix | None = None  # [values, hidden]
    alpha: PackedMatrix | None = None  # [v_heads, hidden]
    beta: PackedMatrix | None = None  # [v_heads, hidden]
    conv: Floats | None = None  # [mixed, kernel]
    rate: Floats | None = None  # [v_heads]
    shift: Floats | None = None  # [v_heads]
    delta_norm: Floats | None = None  # [v_dim]
    attention_changes: PackedMatrix | None = None  # [2 * kernel * groups, hidden], of a convolution of DFlash 2
    attention_base: Floats | None = None  # [2, kernel, hidden]
    mlp_changes: PackedMatrix | None = None  # likewise, of the one around the MLP
    mlp_base: Floats | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return _sum_bytes(self)


@dataclass(frozen=True)
class PackedDecoder:
    """Packed target. `head` is `embedding`, the same object, if they are tied."""

    config: DecoderConfig
    embedding: PackedMatrix  # [vocabulary, hidden]
    head: PackedMatrix  # [vocabulary, hidden]
    norm: Floats  # [hidden]
    layers: tuple[PackedLayer, ...]
    notice: str = ""  # one line for the user if the weights could not be kept on disk

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        head = 0 if self.head is self.embedding else self.head.nbytes
        return self.embedding.nbytes + head + self.norm.nbytes + sum(layer.nbytes for layer in self.layers)


@dataclass(frozen=True)
class PackedHeads:
    """Heads that make a drafter's slots depend on the token before: DSpark's, or the selector of DFlash 2."""

    markov_w1: PackedMatrix | None = None  # [vocabulary, rank]
    markov_w2: PackedMatrix | None = None  # [tokens that it proposes from, rank]
    confidence: Floats | None = None  # [1, hidden + rank]
    confidence_bias: Floats | None = None  # [1]
    predecessor: PackedMatrix | None = None  # [vocabulary, rank]
    successor: PackedMatrix | None = None  # [vocabulary, rank]
    selector: PackedMatrix | None = None  # [rank, hidden]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return _sum_bytes(self)


NO_HEADS = PackedHeads()


@dataclass(frozen=True)
class PackedDrafter:
    """Packed drafter. It uses its target's embedding and head if it has none."""

    config: DFlashConfig
    fuse: PackedMatrix  # [hidden, taps * hidden]
    fuse_norm: Floats  # [hidden]
    norm: Floats  # [hidden]
    layers: tuple[PackedLayer, ...]
    embedding: PackedMatrix | None = None  # [vocabulary, hidden]
    head: PackedMatrix | None = None  # [tokens that it proposes from, hidden]
    heads: PackedHeads = NO_HEADS
    notice: str = ""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        norms = self.fuse_norm.nbytes + self.norm.nbytes
        own = self.heads.nbytes + sum(matrix.nbytes for matrix in (self.embedding, self.head) if matrix)
        return self.fuse.nbytes + norms + own + sum(layer.nbytes for layer in self.layers)


def open_target(path: Path, progress: Progress | None = None) -> PackedDecoder:
    """Open a GGUF file's packed model, packing it first if needed; raise ModelError if the file cannot be run."""
    config, parts, notice = open_packed(path, DecoderConfig, check_target_file, progress)
    head = parts.get("head", parts["embedding"])
    layers = _layers(parts, config.num_hidden_layers)
    return PackedDecoder(config, parts["embedding"], head, parts["norm"], layers, notice)


def open_drafter(path: Path, progress: Progress | None = None, bits: int = 8) -> PackedDrafter:
    """Open the packed drafter of a `dflash` GGUF, or of safetensors next to their config.json.

    With 4 bits its float and Q8_0 matrices are rounded to Q4_0. Raise ModelError if the file cannot be run.
    """
    read_source = partial(check_drafter_file, bits=bits)
    config, parts, notice = open_packed(path, DFlashConfig, read_source, progress, bits)
    layers = _layers(parts, config.decoder.num_hidden_layers)
    own = parts.get("embedding"), parts.get("head")
    heads = PackedHeads(**{name: parts[name] for name in _names(PackedHeads) if name in parts})
    return PackedDrafter(config, parts["fuse"], parts["fuse_norm"], parts["norm"], layers, *own, heads, notice)


def _layers(parts: dict[str, Any], count: int) -> tuple[PackedLayer, ...]:
    names = _names(PackedLayer)
    return tuple(
        PackedLayer(**{name: parts[f"layers.{i}.{name}"] for name in names if f"layers.{i}.{name}" in parts})
        for i in range(count)
    )


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def bind_matrix(packed: PackedMatrix | None) -> MatrixStruct:
    """Return the struct of a matrix, or of a mixture's first matrix; an empty struct for None."""
    if (p := packed) is None:
        return MatrixStruct()
    return MatrixStruct(p.kind, p.n, p.k, address(p.codes), address(p.scales), address(p.supers))


def bind_layers(
    layers: Sequence[PackedLayer],
    cache: KVCache,
    causal: Sequence[bool],
    windows: Sequence[int],
    nets: Sequence[DeltaNetStruct] = (),
) -> Any:
    """Return the blocks as an array of structs, delta nets from `nets`; the caller must keep all arguments alive."""
    bound = (LayerStruct * len(layers))()
    weights = {field[0]: field[1] for field in LayerStruct._fields_ if field[0] in _names(PackedLayer)}
    nets_below = 0
    for i, (to, layer) in enumerate(zip(bound, layers, strict=True)):
        for name, struct in weights.items():
            part = getattr(layer, name)
            setattr(to, name, bind_matrix(part) if struct is MatrixStruct else address(part))
        for name in CONVOLVED:
            changes, base = getattr(layer, f"{name}_changes"), getattr(layer, f"{name}_base")
            setattr(to, f"{name}_conv", ConvolutionStruct(bind_matrix(changes), address(base)))
        to.causal, to.window = causal[i], windows[i]
        if layer.mixed is None:
            to.cache = cache.bound(i - nets_below)
        else:
            to.delta = ctypes.pointer(nets[nets_below])
            nets_below += 1
    return bound


def bind_model(config: DecoderConfig, blocks: int) -> ModelStruct:
    """Return the struct of a model's shape, for the caller to fill in weights and memory."""
    model = ModelStruct()
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
        model.delta = DeltaShapeStruct(d.k_heads, d.v_heads, d.k_dim, d.v_dim, d.kernel)
    model.eps, model.swiglu_limit = config.rms_norm_eps, config.swiglu_limit
    model.embedding_scale = model.logit_scale = 1.0
    return model


def bind_drafter(config: DFlashConfig) -> ModelStruct:
    """Return the struct of a drafter's shape, with the sizes of the matrices that its workspace depends on."""
    c, model = config, bind_model(config.decoder, config.decoder.num_hidden_layers)
    model.embedding_scale, model.logit_scale, model.softcap = c.embedding_scale, c.logit_scale, c.softcap
    model.tap_count, model.fuse.n = len(c.taps), c.decoder.hidden_size
    model.conv_kernel, model.conv_group = c.conv_kernel, c.conv_group
    model.slots.markov_w2.k, model.slots.selector.n = c.markov_rank, c.selector_rank
    model.slots.candidates, model.slots.first = c.selector_top_k, c.first_slot
    return model


def check_shape(config: DecoderConfig) -> str:
    """Return why the kernels cannot run a decoder, or ""."""
    c = config
    if c.head_dim % 32 or c.head_dim > 512:
        return f"heads of {c.head_dim} (they run multiples of 32 up to 512)"
    if c.num_experts > 512 or c.num_experts_per_tok > 32:
        return f"{c.num_experts_per_tok} of {c.num_experts} experts (they run up to 32 of 512)"
    if (d := c.delta) and (d.k_dim % 16 or d.v_dim % 32 or d.v_heads > 256 or d.v_heads % d.k_heads):
        return f"delta nets of {d.k_heads} and {d.v_heads} heads of {d.k_dim} and {d.v_dim}"
    return ""


def rope_tables(config: DecoderConfig, capacity: int) -> tuple[Floats, Floats]:
    """Return cosines and sines [capacity, rotary_dim / 2] of the rotate-half RoPE, float32 as in the reference decoder.

    YaRN scales their magnitude.
    """
    size = config.rotary_dim or config.head_dim
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    divisors = np.array(config.rope_factors or 1.0, np.float32)
    frequencies = np.power(np.float32(config.rope_theta), -exponents) / divisors
    angles = np.arange(capacity, dtype=np.float32)[:, None] * frequencies
    magnitude = np.float32(config.rope_magnitude)
    return np.cos(angles) * magnitude, np.sin(angles) * magnitude
