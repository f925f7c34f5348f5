"""Weights of a target or a drafter on the device. `Planes` are a quantized matrix as arrays of codes and scales.

A layer's Q, K and V weights are one matrix if their types agree, and gate and up rows alternate in one matrix. The down
weights are multiplied by 16, because SwiGLU's outputs are stored divided by 16.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from localdflash.backends.cuda.repack.ggml_blocks import quantize
from localdflash.backends.cuda.repack.gguf_planes import load_planes, rows_of, scaled
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.backends.reference.gguf_decoder import rotate_half_order
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.qkv import HeadRange
from localdflash.kernels.cuda.rope import Rope, rope_tables
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.dflash_file import key_of
from localdflash.models.weights import gguf

ACTIVATION_SCALE = 16  # features and SwiGLU outputs are stored divided by this, to stay below float16's maximum 65504
Progress = Callable[[int, int], None]  # bytes done, total bytes


class TensorSource(Protocol):
    """Source of a model's tensors, by their GGUF names."""

    def kind(self, name: str) -> object:
        """Return the tensor's type; tensors with equal types can form one matrix."""

    def planes(self, names: Sequence[str], interleave: bool = False, order: Tensor | None = None) -> Planes:
        """Join matrices by concatenation or by alternating their rows; with `order`, return its rows `order[i]`."""

    def float_tensor(self, name: str) -> Tensor | None:
        """Return a tensor in float32 instead of planes; None if the model has no such tensor."""


class GGUFSource:
    """Tensors of a GGUF file."""

    def __init__(self, header: gguf.GGUFHeader, device: torch.device, progress: Progress | None = None) -> None:
        self._header, self._device, self._progress = header, device, progress
        self._total = sum(info.nbytes for info in header.tensors.values())
        self._done = 0

    def kind(self, name: str) -> object:
        """See `TensorSource`."""
        return gguf.find(self._header, name).ggml_type

    def planes(self, names: Sequence[str], interleave: bool = False, order: Tensor | None = None) -> Planes:
        """See `TensorSource`."""
        planes = load_planes(self._header, names, self._device, interleave, order)
        self._count(names)
        return planes

    def float_tensor(self, name: str) -> Tensor | None:
        """See `TensorSource`."""
        if name not in self._header.tensors:
            return None
        self._count((name,))
        return gguf.load_tensor(self._header, name).to(self._device)

    def _count(self, names: Sequence[str]) -> None:
        self._done += sum(self._header.tensors[name].nbytes for name in names)
        if self._progress:
            self._progress(self._done, self._total)


class ModuleSource:
    """Tensors of a float drafter, quantized when they are requested."""

    def __init__(self, model: DFlash, device: torch.device, bits: int) -> None:
        self._state, self._device, self._bits = model.state_dict(), device, bits

    def kind(self, name: str) -> object:
        """See `TensorSource`."""
        return self._bits

    def planes(self, names: Sequence[str], interleave: bool = False, order: Tensor | None = None) -> Planes:
        """See `TensorSource`."""
        matrices = [self._find(name).to(self._device) for name in names]
        joined = torch.stack(matrices, 1).flatten(0, 1) if interleave else torch.cat(matrices)
        return quantize(joined if order is None else joined[order], self._bits)

    def float_tensor(self, name: str) -> Tensor | None:
        """See `TensorSource`."""
        return self._find(name).to(self._device) if key_of(name) in self._state else None

    def _find(self, name: str) -> Tensor:
        return self._state[key_of(name)]


@dataclass(frozen=True)
class QkvProjection:
    """Projection to query, key and value heads of a layer, or to K and V heads of all layers, as one matrix."""

    heads: HeadRange
    planes: Planes
    bias: Tensor | None  # [number of heads * D]


@dataclass(frozen=True)
class Dense:
    """A SwiGLU MLP."""

    gate_up: Planes
    down: Planes


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts, each a SwiGLU MLP; `gate_up` and `down` stack the experts' matrices."""

    router: Tensor  # [E, H], E experts
    gate_up: Planes
    down: Planes


@dataclass(frozen=True)
class Convolution:
    """DFlash 2's convolutions around a sublayer; see localdflash.kernels.cuda.convolve."""

    base: Tensor  # [2, kernel, H]
    projection: Planes  # [2 * kernel * H / group, H]
    group: int


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one decoder layer."""

    input_gain: Tensor  # [H]
    qkv: tuple[QkvProjection, ...]
    q_gain: Tensor | None  # [D]
    k_gain: Tensor | None
    output: Planes
    output_bias: Tensor | None  # [H]
    mlp_gain: Tensor  # [H]
    mlp: Dense | Mixture
    attention_conv: Convolution | None = None
    mlp_conv: Convolution | None = None


@dataclass(frozen=True)
class TargetWeights:
    """A decoder with its embedding and LM head."""

    config: DecoderConfig
    embedding: Planes  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_gain: Tensor  # [H]
    head: Planes  # [V, H]
    rope: Rope


@dataclass(frozen=True)
class Markov:
    """Low-rank logit bias by the previous token (DSpark): bias times table[previous]; see kernels/cuda/markov.py."""

    table: Tensor  # [V, K], a row per previous token
    bias: Planes  # [rows of the LM head, rank], rank padded to K


@dataclass(frozen=True)
class Selector:
    """Weights that score pairs of a previous token and a candidate (DFlash 2); see kernels/cuda/selector.py."""

    predecessors: Tensor  # [V, rank]
    successors: Tensor  # [V, rank]
    projection: Planes  # [rank, H]


@dataclass(frozen=True)
class DrafterWeights:
    """Drafter of the DFlash family; without its own embedding or LM head it uses the target's."""

    config: DFlashConfig
    fuse: Planes  # [H, n_taps * H]
    fuse_gain: Tensor  # [H]
    context: tuple[QkvProjection, ...]  # K and V projections of all layers, for context tokens
    context_gain: Tensor | None  # [layers, D], gains of the K norms
    layers: tuple[LayerWeights, ...]
    final_gain: Tensor
    rope: Rope
    embedding: Planes  # [V, H]
    head: Planes
    head_ids: Tensor | None  # int32 [rows of `head`]: token ids, if `head` covers only a part of the vocabulary
    chooser: Markov | Selector | None


def load_target(source: TensorSource, config: DecoderConfig, positions: int, permuted_qk: bool) -> TargetWeights:
    """Return a target's weights, and RoPE for `positions` tokens; `permuted_qk`: Q and K rows are interleaved."""
    embedding = source.planes(["token_embd.weight"])
    return TargetWeights(
        config=config,
        embedding=embedding,
        layers=tuple(_layers(source, config, permuted_qk)),
        final_gain=_require(source, "output_norm.weight"),
        head=embedding if config.tie_word_embeddings else source.planes(["output.weight"]),
        rope=_rope(config, positions, embedding.base.device),
    )


def load_drafter(
    source: TensorSource, config: DFlashConfig, target: TargetWeights, positions: int, dtype: torch.dtype
) -> DrafterWeights:
    """Return a drafter's weights, and RoPE for `positions` tokens; the chooser's tables get type `dtype`."""
    c, device = config.decoder, target.final_gain.device
    layers = tuple(_with_convolutions(source, config, i, layer) for i, layer in enumerate(_layers(source, c, False)))
    keys_and_values = [f"blk.{i}.{name}" for i in range(c.num_hidden_layers) for name in ("attn_k", "attn_v")]
    short = torch.tensor(config.short, dtype=torch.int32, device=device) if config.short else None
    if config.own_head:
        head = source.planes(["output.weight"])
    else:
        head = target.head if short is None else rows_of(target.head, short)
    return DrafterWeights(
        config=config,
        fuse=source.planes(["fc.weight"]),
        fuse_gain=_require(source, "enc.output_norm.weight"),
        context=tuple(_projections(source, c, keys_and_values)),
        context_gain=torch.stack([layer.k_gain for layer in layers if layer.k_gain is not None]),
        layers=layers,
        final_gain=_require(source, "output_norm.weight"),
        rope=_rope(c, positions, device),
        embedding=source.planes(["token_embd.weight"]) if config.own_embedding else target.embedding,
        head=head,
        head_ids=short,
        chooser=_chooser(source, config, dtype),
    )


def _chooser(source: TensorSource, config: DFlashConfig, dtype: torch.dtype) -> Markov | Selector | None:
    """Return the weights that choose a draft's tokens one after another; None for plain DFlash, which has none."""
    if config.markov_rank:
        bias, table = source.planes(["markov_w2.weight"]), _require(source, "markov_w1.weight").to(dtype)
        return Markov(F.pad(table, (0, bias.padded_k - bias.k)), bias)
    if config.selector_rank:
        predecessors, successors = (
            _require(source, f"selector_{name}.weight").to(dtype) for name in ("predecessor", "successor")
        )
        return Selector(predecessors, successors, source.planes(["selector_hidden.weight"]))
    return None


def _with_convolutions(source: TensorSource, config: DFlashConfig, index: int, layer: LayerWeights) -> LayerWeights:
    if not config.conv_kernel:
        return layer

    def convolution(name: str) -> Convolution:
        stem = f"blk.{index}.{name}_conv"
        return Convolution(_require(source, f"{stem}_base"), source.planes([f"{stem}_proj.weight"]), config.conv_group)

    return replace(layer, attention_conv=convolution("attn"), mlp_conv=convolution("ffn"))


def _rope(config: DecoderConfig, positions: int, device: torch.device) -> Rope:
    factors = torch.tensor(config.rope_factors) if config.rope_factors else None
    return rope_tables(positions, config.head_dim, config.rope_theta, device, factors, config.rope_magnitude)


def _layers(source: TensorSource, config: DecoderConfig, permuted_qk: bool) -> Iterator[LayerWeights]:
    for index in range(config.num_hidden_layers):
        prefix = f"blk.{index}."
        yield LayerWeights(
            input_gain=_require(source, f"{prefix}attn_norm.weight"),
            qkv=tuple(_projections(source, config, [f"{prefix}attn_{part}" for part in "qkv"], permuted_qk)),
            q_gain=source.float_tensor(f"{prefix}attn_q_norm.weight"),
            k_gain=source.float_tensor(f"{prefix}attn_k_norm.weight"),
            output=source.planes([f"{prefix}attn_output.weight"]),
            output_bias=source.float_tensor(f"{prefix}attn_output.bias"),
            mlp_gain=_require(source, f"{prefix}ffn_norm.weight"),
            mlp=_mixture(source, prefix) if config.num_experts else _dense(source, prefix),
        )


def _dense(source: TensorSource, prefix: str) -> Dense:
    gate_up = source.planes([f"{prefix}ffn_gate.weight", f"{prefix}ffn_up.weight"], interleave=True)
    return Dense(gate_up, scaled(source.planes([f"{prefix}ffn_down.weight"]), ACTIVATION_SCALE))


def _mixture(source: TensorSource, prefix: str) -> Mixture:
    gate_up = source.planes([f"{prefix}ffn_gate_exps.weight", f"{prefix}ffn_up_exps.weight"], interleave=True)
    down = scaled(source.planes([f"{prefix}ffn_down_exps.weight"]), ACTIVATION_SCALE)
    return Mixture(_require(source, f"{prefix}ffn_gate_inp.weight"), gate_up, down)


def _projections(
    source: TensorSource, config: DecoderConfig, stems: Sequence[str], permuted_qk: bool = False
) -> Iterator[QkvProjection]:
    """Yield the projections `stems` (Q, K and V of a layer, or K and V of all layers), joined where types agree."""
    kv, d = config.num_key_value_heads, config.head_dim
    q = config.num_attention_heads if any(stem.endswith("attn_q") for stem in stems) else 0

    def count(stem: str) -> int:
        return q if stem.endswith("attn_q") else kv

    first = 0
    for _, group in groupby(stems, key=lambda stem: source.kind(f"{stem}.weight")):
        names = list(group)
        heads = sum(map(count, names))
        order = torch.cat(list(_row_order(names, [count(name) for name in names], d))) if permuted_qk else None
        planes = source.planes([f"{name}.weight" for name in names], order=order)
        biases = [bias for name in names if (bias := source.float_tensor(f"{name}.bias")) is not None]
        yield QkvProjection(HeadRange(first, heads, q, kv), planes, torch.cat(biases) if biases else None)
        first += heads


def _row_order(stems: Sequence[str], heads: Sequence[int], head_dim: int) -> Iterator[Tensor]:
    """Yield the row order that turns q and k from llama.cpp's interleaved order to rotate-half, and keeps v."""
    offset = 0
    for stem, count in zip(stems, heads, strict=True):
        rows = count * head_dim
        yield offset + (torch.arange(rows) if stem.endswith("attn_v") else rotate_half_order(count, head_dim))
        offset += rows


def _require(source: TensorSource, name: str) -> Tensor:
    if (tensor := source.float_tensor(name)) is None:
        raise ModelError(f"tensor {name} is missing; convert the model again")
    return tensor
