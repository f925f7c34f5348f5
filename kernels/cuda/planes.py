"""Planes: the in-memory format of all quantized weights on CUDA.

A matrix [n, k] is cut along k into blocks of 4 * R weights. A column of a block has R = 16 or 32 words. Word r holds
four 4-bit fields; field i is the code of k = block * 4R + i * R + r. A loaded tile of words [R, columns] thus unpacks
in place into four operand tiles, each contiguous in k. With groups of R weights each tile has one scale per column.

    weight = value(code) * scale(group) - minimum(group)

* `base` holds the low four bits, `high` the rest: none, two bits (bytes) or four bits (words).
* value: `code - zero`, or the floating-point number with these bits (e2m1).
* scale, by `scaling`:
    "block"  float32 [k / 4R, n]; a group is one block of 128
    "half4"  int32 [k / 4R, 2, n]: the four float16 scales of a block; word j holds groups 2j (low half) and 2j + 1
    "byte4"  int32 [k / 4R, n]: the four 8-bit sub-scales of a block, lowest byte first, unsigned for R = 32 (Q4_K and
             Q5_K), signed for R = 16 (Q6_K); times the low half of `supers` (super-scales), int32 [k / 256, n]
* minimum, with `scaling`: for "byte4" an int32 [k / 4R, n] of unsigned bytes, times the high half of `supers`; for
  "half4" laid out as the scales; "block" has none; None if there is none.

With scaling "product" there are no weights: `base` is a finished product a @ W^T, float32 [rows, n padded], which a
kernel loads instead of multiplying. So the fused epilogues serve GEMMs of other kinds too (in
localdflash.backends.cuda, native_fp4 and prompt_reader).

n is padded to a multiple of 128, k to a multiple of 4R; padding has code and scale zero. The matrices of a stack of
`experts` follow each other along the first axis of every tensor.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Scaling = Literal["block", "half4", "byte4", "product"]
Code = Literal["int", "e2m1"]
COLUMNS = 128  # n is a multiple of this
SUPER = 256  # weights of a super-block, which share an entry of `supers`
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)  # values by code


@dataclass(frozen=True)
class Planes:
    """Quantized weights [n, k] of a linear layer y = W x; see the module docstring. `n` and `k` exclude padding."""

    n: int
    k: int
    block_words: int  # R, the words of a column per block
    base: Tensor  # int16 [K / 4, N]
    high: Tensor | None  # uint8 [K / 4, N] (2-bit fields) or int16 [K / 4, N] (4-bit fields)
    scaling: Scaling
    scale: Tensor
    supers: Tensor | None = None
    minimum: Tensor | None = None
    zero: int = 0
    code: Code = "int"
    experts: int = 1

    @property
    def padded_n(self) -> int:
        """Number of columns of every tensor."""
        return self.base.shape[1]

    @property
    def padded_k(self) -> int:
        """Number of weights per column of one expert, padding included; 0 if `base` is a finished product."""
        return 0 if self.scaling == "product" else self.base.shape[0] * 4 // self.experts

    @property
    def high_bits(self) -> int:
        """Bits of a field in `high`: 0, 2 or 4."""
        if self.high is None:
            return 0
        return 2 if self.high.dtype == torch.uint8 else 4

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.base, self.high, self.scale, self.supers, self.minimum)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    @cached_property
    def dense(self) -> Tensor:
        """Return the weights, float32 [experts * n, k]: the reference for every kernel that reads planes."""
        return dequantize(self)


def pack_fields(codes: Tensor, block_words: int, bits: int) -> Tensor:
    """Pack codes [K, N] of 2 or 4 bits into words [K / 4, N]: uint8 for 2 bits, int16 for 4."""
    k, n = codes.shape
    fields = codes.to(torch.int32).view(k // (4 * block_words), 4, block_words, n)
    shifts = torch.arange(4, dtype=torch.int32, device=codes.device).view(1, 4, 1, 1) * bits
    words = (fields << shifts).sum(1, dtype=torch.int32).view(k // 4, n)
    return words.to(torch.uint8) if bits == 2 else words.to(torch.int16)  # int16 keeps the bits


def unpack_fields(words: Tensor, block_words: int, bits: int) -> Tensor:
    """Return the inverse of `pack_fields`: int32 [K, N]."""
    blocks = words.to(torch.int32).view(-1, 1, block_words, words.shape[1])
    shifts = torch.arange(4, dtype=torch.int32, device=words.device).view(1, 4, 1, 1) * bits
    return ((blocks >> shifts) & (2**bits - 1)).reshape(-1, words.shape[1])


def pack_bytes(groups: Tensor) -> Tensor:
    """Pack bytes [groups, N] (uint8 or int8), four groups per block, into int32 [groups / 4, N], lowest byte first."""
    fields = groups.to(torch.int32).bitwise_and(255).view(-1, 4, groups.shape[1])
    low = fields[:, 0] | (fields[:, 1] << 8) | (fields[:, 2] << 16)
    return low | (fields[:, 3] << 24)


def unpack_bytes(words: Tensor, signed: bool) -> Tensor:
    """Return the inverse of `pack_bytes`: int32 [groups, N]."""
    shifts = torch.arange(0, 32, 8, dtype=torch.int32, device=words.device).view(1, 4, 1)
    bytes_ = ((words.unsqueeze(1) >> shifts) & 255).reshape(-1, words.shape[1])
    return torch.where(bytes_ > 127, bytes_ - 256, bytes_) if signed else bytes_


def pack_halves(low: Tensor, high: Tensor) -> Tensor:
    """Pack two tensors, rounded to float16, into the low and high halves of an int32."""
    pair = torch.stack((low.to(torch.float16), high.to(torch.float16)), -1).contiguous()
    return pair.view(torch.int32).squeeze(-1)


def unpack_halves(words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse of `pack_halves`, float32."""
    pair = words.contiguous().unsqueeze(-1).view(torch.float16).float()
    return pair[..., 0], pair[..., 1]


def dequantize(planes: Planes) -> Tensor:
    """Return the weights, float32 [experts * n, k], by the definition in the module docstring; slow."""
    p, total = planes, planes.padded_k * planes.experts
    codes = unpack_fields(p.base, p.block_words, 4)
    if p.high is not None:
        codes = codes | (unpack_fields(p.high, p.block_words, p.high_bits) << 4)
    scale, minimum = _groups(p)
    repeat = total // scale.shape[0]
    weights = _values(codes, p) * scale.repeat_interleave(repeat, 0)
    if minimum is not None:
        weights -= minimum.repeat_interleave(repeat, 0)
    stacked = weights.view(p.experts, p.padded_k, p.padded_n)[:, : p.k, : p.n]
    return stacked.transpose(1, 2).reshape(-1, p.k)


def _values(codes: Tensor, planes: Planes) -> Tensor:
    if planes.code == "e2m1":
        return torch.tensor(E2M1, device=codes.device)[codes.long()]
    return (codes - planes.zero).float()


def _groups(planes: Planes) -> tuple[Tensor, Tensor | None]:
    """Return scales and minimums by group, float32 [groups, N]."""
    p = planes
    if p.scaling == "block":
        return p.scale, None
    if p.scaling == "half4":
        return _four_halves(p.scale), None if p.minimum is None else _four_halves(p.minimum)
    assert p.supers is not None
    repeat = SUPER // p.block_words
    scale, minimum = (half.repeat_interleave(repeat, 0) for half in unpack_halves(p.supers))
    scale = scale * unpack_bytes(p.scale, signed=p.block_words == 16)
    return scale, None if p.minimum is None else minimum * unpack_bytes(p.minimum, signed=False)


def _four_halves(words: Tensor) -> Tensor:
    """Unpack words [blocks, 2, N] of four groups per block to float32 [groups, N]."""
    return torch.stack(unpack_halves(words), 2).view(-1, words.shape[-1])
