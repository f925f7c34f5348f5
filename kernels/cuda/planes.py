"""Planes: the in-memory format of all quantized weights on CUDA.

A matrix [n, k] is cut along k into blocks of 4 * R weights. A column of a block has R = 16 or 32 words. Word r holds
four 4-bit fields; field i is the code of k = block * 4R + i * R + r. A loaded tile of words [R, columns] thus unpacks
in place into four operand tiles, each contiguous in k. With groups of R weights each tile has one scale per column.

    weight = value(code) * scale(group) - minimum(group)

* `base` holds the low four bits, `high` the rest: none, four bits (words like those of `base`), or two bits. Word
  16q + r of two bits serves words 32q + r (its low byte) and 32q + 16 + r (its high byte) of `base`; fields 0 to 3 are
  at bits 0, 4, 2 and 6 of the byte.
* value: `code - zero`, or the floating-point number with these bits (e2m1).
* scale, by `scaling`:
    "block"  float32 [k / 4R, n]; a group is one block of 128
    "half4"  int32 [k / 4R, 2, n]: the four float16 scales of a block; word j holds groups 2j (low half) and 2j + 1
    "byte4"  int32 [k / 4R, n]: the four 8-bit sub-scales of a block, lowest byte first, unsigned for R = 32 (Q4_K and
             Q5_K), signed for R = 16 (Q6_K). value * sub-scale is rounded to float16, which changes only some weights
             of Q6_K, and multiplied by the low half of `supers` (super-scales), int32 [k / 256, n]
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
    high: Tensor | None  # int16 [K / 8, N] (2-bit fields) or [K / 4, N] (4-bit fields)
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
        return 4 * self.high.shape[0] // self.base.shape[0]

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
    """Pack codes [K, N] of 2 or 4 bits into words, int16 [K * bits / 16, N]."""
    k, n = codes.shape
    fields = codes.to(torch.int32).view(k // (4 * block_words), 4, block_words, n)
    words = (fields << _shifts(bits, codes.device)).sum(1, dtype=torch.int32).view(k // 4, n)
    if bits == 2:
        low, high = words.view(-1, 2, 16, n).unbind(1)
        words = (low | high << 8).view(k // 8, n)
    return words.to(torch.int16)  # keeps the bits


def unpack_fields(words: Tensor, block_words: int, bits: int) -> Tensor:
    """Return the inverse of `pack_fields`: int32 [K, N]."""
    n = words.shape[1]
    words = words.to(torch.int32)
    if bits == 2:
        pairs = words.view(-1, 16, n)
        words = torch.stack((pairs, pairs >> 8), 1)
    blocks = words.view(-1, 1, block_words, n)
    return ((blocks >> _shifts(bits, words.device)) & (2**bits - 1)).reshape(-1, n)


def _shifts(bits: int, device: torch.device) -> Tensor:
    """Return the first bits of a word's four fields, int32 [1, 4, 1, 1]."""
    shifts = (0, 4, 8, 12) if bits == 4 else (0, 4, 2, 6)
    return torch.tensor(shifts, dtype=torch.int32, device=device).view(1, 4, 1, 1)


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
    if p.supers is not None:
        weights = weights.half().float() * unpack_halves(p.supers)[0].repeat_interleave(SUPER, 0)
    if minimum is not None:
        weights -= minimum.repeat_interleave(repeat, 0)
    stacked = weights.view(p.experts, p.padded_k, p.padded_n)[:, : p.k, : p.n]
    return stacked.transpose(1, 2).reshape(-1, p.k)


def _values(codes: Tensor, planes: Planes) -> Tensor:
    if planes.code == "e2m1":
        return torch.tensor(E2M1, device=codes.device)[codes.long()]
    return (codes - planes.zero).float()


def _groups(planes: Planes) -> tuple[Tensor, Tensor | None]:
    """Return scales, without super-scales, and minimums by group, float32 [groups, N]."""
    p = planes
    if p.scaling == "block":
        return p.scale, None
    if p.scaling == "half4":
        return _four_halves(p.scale), None if p.minimum is None else _four_halves(p.minimum)
    assert p.supers is not None
    scale = unpack_bytes(p.scale, signed=p.block_words == 16).float()
    if p.minimum is None:
        return scale, None
    factors = unpack_halves(p.supers)[1].repeat_interleave(SUPER // p.block_words, 0)
    return scale, factors * unpack_bytes(p.minimum, signed=False)


def _four_halves(words: Tensor) -> Tensor:
    """Unpack words [blocks, 2, N] of four groups per block to float32 [groups, N]."""
    return torch.stack(unpack_halves(words), 2).view(-1, words.shape[-1])
