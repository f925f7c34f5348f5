"""A packed model, part by part, named as the structs of kernels/cpu/kernels.h. Imports no torch."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.matrices import PackedMatrix
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig

Floats = NDArray[np.float32]


def _held(packed: Any) -> int:
    """Bytes of the fields of a dataclass that are there."""
    parts = (getattr(packed, field.name) for field in fields(packed))
    return sum(part.nbytes for part in parts if part is not None)


@dataclass(frozen=True)
class PackedLayer:
    """One block of a decoder; of a mixture, gate, up and down hold all experts and `router` is there."""

    attention_norm: Floats  # [hidden]
    mlp_norm: Floats  # [hidden]
    output: PackedMatrix  # [hidden, heads * head_dim], or [hidden, values] of a delta net
    gate: PackedMatrix  # [inner, hidden]
    up: PackedMatrix  # [inner, hidden]
    down: PackedMatrix  # [hidden, inner]
    query: PackedMatrix | None = (
        None  # [heads * head_dim, hidden], rows in rotate-half order; each head's gate after it
    )
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
        """Bytes held."""
        return _held(self)


# Fields of a `PackedLayer` as the struct of a layer has them: floats, and matrices; and those of a delta net's own.
VECTORS = frozenset(
    {"attention_norm", "mlp_norm", "query_norm", "key_norm", "router", "query_bias", "key_bias", "value_bias"}
    | {"output_bias", "router_bias", "gate_bias", "up_bias", "down_bias", "sinks", "shared_router"}
)
MATRICES = frozenset(
    {"query", "key", "value", "output", "gate", "up", "down", "shared_gate", "shared_up", "shared_down"}
)
DELTA_VECTORS = frozenset({"conv", "rate", "shift", "delta_norm"})
CONVOLVED = ("attention", "mlp")  # sublayers of DFlash 2
BASES = frozenset(f"{name}_base" for name in CONVOLVED)


@dataclass(frozen=True)
class PackedDecoder:
    """A target. `head` is `embedding`, the same object, where they are tied."""

    config: DecoderConfig
    embedding: PackedMatrix  # [vocabulary, hidden]
    head: PackedMatrix  # [vocabulary, hidden]
    norm: Floats  # [hidden]
    layers: tuple[PackedLayer, ...]
    notice: str = ""  # one line for the user where the weights could not be kept on disk

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        head = 0 if self.head is self.embedding else self.head.nbytes
        return self.embedding.nbytes + head + self.norm.nbytes + sum(layer.nbytes for layer in self.layers)


@dataclass(frozen=True)
class PackedHeads:
    """What makes a drafter's slots depend on the token before them: DSpark's heads, or the selector of DFlash 2."""

    markov_w1: PackedMatrix | None = None  # [vocabulary, rank]
    markov_w2: PackedMatrix | None = None  # [tokens that it proposes from, rank]
    confidence: Floats | None = None  # [1, hidden + rank]
    confidence_bias: Floats | None = None  # [1]
    predecessor: PackedMatrix | None = None  # [vocabulary, rank]
    successor: PackedMatrix | None = None  # [vocabulary, rank]
    selector: PackedMatrix | None = None  # [rank, hidden]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return _held(self)


HEAD_VECTORS = frozenset({"confidence", "confidence_bias"})
NO_HEADS = PackedHeads()


@dataclass(frozen=True)
class PackedDrafter:
    """A drafter, which borrows its target's embedding and head where it has none of its own."""

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
        """Bytes held."""
        norms = self.fuse_norm.nbytes + self.norm.nbytes
        own = self.heads.nbytes + sum(matrix.nbytes for matrix in (self.embedding, self.head) if matrix)
        return self.fuse.nbytes + norms + own + sum(layer.nbytes for layer in self.layers)
