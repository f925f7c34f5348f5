"""FP4 times FP4 on the tensor cores of RTX Blackwell: weights unmodified, activations quantized on the fly.

An optional mode, because rounding the activations changes the model's output. Two formats:
  MXFP4  groups of 32, scales powers of two (bytes e8m0)
  NVFP4  groups of 16, scales e4m3, times a factor per row of the activations and per row of the weights
Codes are e2m1, two per byte, the even k in the low half. k is cut into consecutive spans of 512 ([spans, rows, ...]),
so that a tile of weights is contiguous in memory and a tile of scales is wide enough for asynchronous copies. Padding
has code zero.

In Triton's interpreter NVFP4 products are wrong: `tl.dot_scaled` reads e4m3 scales as e8m0 there.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.launch import Kernel, every_launch, release, wait
from localdflash.kernels.cuda.planes import E2M1, Planes, unpack_fields, unpack_halves
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace, arrive, gather

ROWS = 16
SPAN = 512  # weights along k of one tile
BN = 64  # columns (rows of W) of one tile
PROGRAMS = 340  # two per multiprocessor of the largest chip, an RTX 5090
TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # midpoints between e2m1 numbers; ties go to the even code
FORMAT = tl.constexpr("e2m1")  # type of the codes; the interpreter of triton 3.7 accepts no plain string
SMALLEST = 2.0**-24  # smallest positive float16, and the lower bound of a group's peak


@dataclass(frozen=True)
class Fp4Matrix:
    """Weights [n, k] in FP4."""

    n: int
    k: int
    codes: Tensor  # uint8 [spans, N, 256]
    scales: Tensor  # [spans, N, 512 / group]: uint8 (e8m0) or float8_e4m3fn
    factor: Tensor  # float32 [N]

    @property
    def group(self) -> int:
        """Weights under one scale: 32 (MXFP4) or 16 (NVFP4)."""
        return SPAN // self.scales.shape[2]

    @cached_property
    def dense(self) -> Tensor:
        """Return the weights, float32 [n, k]."""
        return (_decode(self.codes, self.scales) * self.factor.unsqueeze(1))[: self.n, : self.k]


@dataclass(frozen=True)
class Fp4Rows:
    """Buffers for 16 rows of activations in FP4."""

    codes: Tensor  # uint8 [spans, 16, 256]
    scales: Tensor  # [spans, 16, 512 / group], as in Fp4Matrix
    factor: Tensor  # float32 [16], powers of two; 1 for MXFP4

    @classmethod
    def empty(cls, matrix: Fp4Matrix) -> "Fp4Rows":
        """Return buffers for the input of a matrix, on its device."""
        spans, device = matrix.codes.shape[0], matrix.codes.device
        return cls(
            torch.zeros(spans, ROWS, SPAN // 2, dtype=torch.uint8, device=device),
            torch.zeros(spans, ROWS, SPAN // matrix.group, dtype=torch.uint8, device=device).view(matrix.scales.dtype),
            torch.ones(ROWS, device=device),
        )

    @property
    def dense(self) -> Tensor:
        """Return the values, float32 [16, K]."""
        return _decode(self.codes, self.scales) * self.factor.unsqueeze(1)


def fp4_matrix(planes: Planes) -> Fp4Matrix:
    """Convert planes of e2m1 codes to an Fp4Matrix on their device; ModelError for other planes and unfit scales.

    Exact for MXFP4 (R = 32), and for NVFP4 (R = 16) without a second scale. With a second scale, planes hold the
    product of both scales rounded to float16, which is split again with an error of the same size.
    """
    if planes.code != "e2m1" or planes.scaling != "half4" or planes.experts != 1:
        raise ModelError("FP4 matrix: its weights are neither MXFP4 nor NVFP4; leave out the FP4 mode")
    codes = unpack_fields(planes.base, planes.block_words, 4).t()  # [N, K]
    scale = torch.stack(unpack_halves(planes.scale), 2).flatten(0, 2).t()  # [N, K / R]
    codes = torch.where(scale.repeat_interleave(planes.block_words, 1) == 0, 0, codes)
    bytes_, factor = _split_e8m0(scale) if planes.block_words == 32 else _split_e4m3(scale)
    groups = SPAN // planes.block_words
    return Fp4Matrix(planes.n, planes.k, _spans(_pack(codes), SPAN // 2), _spans(bytes_, groups), factor)


def _split_e8m0(scale: Tensor) -> tuple[Tensor, Tensor]:
    """Split scales [N, groups] into e8m0 bytes and the rows' factors, which are 1."""
    mantissa, exponent = torch.frexp(scale)
    if not bool(((mantissa == 0.5) | (scale == 0)).all()):
        raise ModelError("FP4 matrix: an MXFP4 scale is not a power of two; leave out the FP4 mode")
    bytes_ = torch.where(scale == 0, 127, exponent + 126)
    return bytes_.to(torch.uint8), torch.ones(len(scale), device=scale.device)


def _split_e4m3(scale: Tensor) -> tuple[Tensor, Tensor]:
    """Split scales [N, groups] into e4m3 and a factor per row, with the smallest error."""
    peak = scale.amax(1)
    best, factor = torch.full_like(peak, torch.inf), torch.ones_like(peak)
    for largest in (240.0, 256.0, 288.0, 320.0, 352.0, 384.0, 416.0, 448.0):  # the largest e4m3 numbers
        candidate = torch.where(peak == 0, 1.0, peak / largest)
        error = (
            (_round_e4m3(scale, candidate).float() * candidate.unsqueeze(1) - scale).abs() / peak.unsqueeze(1)
        ).amax(1)
        factor = torch.where(error < best, candidate, factor)
        best = torch.minimum(best, error)
    split = _round_e4m3(scale, factor)
    error = (split.float() * factor.unsqueeze(1) - scale).abs()
    if bool((error > scale.abs() * 2**-10 + SMALLEST).any()):
        raise ModelError("FP4 matrix: an NVFP4 scale is not e4m3; leave out the FP4 mode")
    return split, factor


def _round_e4m3(scale: Tensor, factor: Tensor) -> Tensor:
    return (scale / factor.unsqueeze(1)).to(torch.float8_e4m3fn)


def _pack(codes: Tensor) -> Tensor:
    """Pack codes [rows, K] into uint8 [rows, K / 2]."""
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).to(torch.uint8)


def _spans(rows: Tensor, width: int) -> Tensor:
    """Reshape [rows, columns] to [spans, rows, width], padded with zero bytes."""
    flat = rows.view(torch.uint8)
    flat = F.pad(flat, (0, -flat.shape[1] % width))
    return flat.view(len(flat), -1, width).transpose(0, 1).contiguous().view(rows.dtype)


def _decode(codes: Tensor, scales: Tensor) -> Tensor:
    """Dequantize codes and scales [spans, rows, ...] to float32 [rows, K]."""
    pairs = torch.stack((codes & 15, codes >> 4), 3).flatten(2).long()
    scale = torch.exp2(scales.float() - 127) if scales.dtype == torch.uint8 else scales.float()
    values = torch.tensor(E2M1, device=codes.device)[pairs] * scale.repeat_interleave(SPAN // scales.shape[2], 2)
    return values.transpose(0, 1).flatten(1)


@Kernel
@triton.jit
def _quantize_rows(
    a_ptr, codes_ptr, scales_ptr, factor_ptr, K, GROUP: tl.constexpr, SPAN: tl.constexpr, PDL: tl.constexpr
):
    """Grid (16 rows, spans). Scales are rounded with integer operations: the same bits on every chip."""
    row, span = tl.program_id(0), tl.program_id(1)
    GROUPS: tl.constexpr = SPAN // GROUP
    group = tl.arange(0, GROUPS)
    k = span * SPAN + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    wait(PDL)
    release(PDL)
    a = tl.load(a_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    peak = tl.maximum(tl.max(tl.abs(a), 1), 5.9604645e-08)
    if GROUP == 32:
        # The smallest power of two that scales the peak to 7 or less: clipping 7 to 6 is no worse than rounding 5 to 4.
        byte = ((peak.to(tl.int32, bitcast=True) + 0x1FFFFF) >> 23) - 2
        scale = (byte << 23).to(tl.float32, bitcast=True)
    else:
        factor = _row_factor(a_ptr + row * K, K, SPAN)
        if span == 0:
            tl.store(factor_ptr + row, factor)
        # Round to e4m3, ties to even, at least its smallest normal number, 2^-6.
        bits = (peak * 0.16666667 / factor).to(tl.int32, bitcast=True)
        byte = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
        byte = tl.minimum(tl.maximum(byte, 8), 126)
        scale = ((byte + 960) << 20).to(tl.float32, bitcast=True) * factor
    codes = _e2m1(a, scale[:, None])
    low, high = tl.split(tl.reshape(codes, (GROUPS, GROUP // 2, 2)))
    at = (span * 16 + row) * GROUPS + group
    pair = at[:, None] * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
    tl.store(codes_ptr + pair, (low | (high << 4)).to(tl.uint8))
    tl.store(scales_ptr + at, byte.to(tl.uint8))


@triton.jit
def _row_factor(a_ptr, K, SPAN: tl.constexpr):
    """Return the smallest power of two that divides every scale of a row, peak / 6, to 448 or less."""
    k = tl.arange(0, 4 * SPAN)
    peak = tl.full((4 * SPAN,), 5.9604645e-08, tl.float32)
    for start in tl.range(0, K, 4 * SPAN):
        a = tl.load(a_ptr + start + k, mask=start + k < K, other=0.0).to(tl.float32)
        peak = tl.maximum(peak, tl.abs(a))
    exponent = ((tl.max(peak, 0).to(tl.int32, bitcast=True) + 0x57FFFF) >> 23) - 11
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def _e2m1(a, scale):
    """Return the codes nearest to a / scale, ties to even, int32. Ties times a scale are exact."""
    size = tl.abs(a)
    code = (size > 0.25 * scale).to(tl.int32) + (size >= 0.75 * scale).to(tl.int32)
    code += (size > 1.25 * scale).to(tl.int32) + (size >= 1.75 * scale).to(tl.int32)
    code += (size > 2.5 * scale).to(tl.int32) + (size >= 3.5 * scale).to(tl.int32)
    code += (size > 5.0 * scale).to(tl.int32)
    return tl.where(a < 0, code + 8, code)


def quantize_rows_fp4(a: Tensor, rows: Fp4Rows) -> None:
    """Quantize a, float16 [16, K], into `rows`, each row separately. K may be less than the spans' width."""
    spans, _, groups = rows.scales.shape
    _quantize_rows[(ROWS, spans)](
        a,
        rows.codes,
        rows.scales.view(torch.uint8),
        rows.factor,
        a.shape[1],
        GROUP=SPAN // groups,
        SPAN=SPAN,
        num_warps=1,
        **every_launch(a.device),
    )


def quantize_rows_fp4_reference(a: Tensor, rows: Fp4Rows) -> None:
    """Do what `quantize_rows_fp4` does, in torch; a may be float32."""
    spans, _, groups = rows.scales.shape
    values = F.pad(a.float(), (0, spans * SPAN - a.shape[1])).view(ROWS, spans * groups, -1)
    peak = values.abs().amax(2).clamp_min(SMALLEST)
    if rows.scales.dtype == torch.uint8:
        exponent = torch.ceil(torch.log2(peak / 7))
        scale, bytes_ = torch.exp2(exponent), (exponent + 127).to(torch.uint8)
    else:
        factor = torch.exp2(torch.ceil(torch.log2(peak.amax(1, keepdim=True) / (6 * 448))))
        rows.factor.copy_(factor.squeeze(1))
        bytes_ = (peak * (1 / 6) / factor).clamp_min(2**-6).to(torch.float8_e4m3fn)
        scale = bytes_.float() * factor
    size = (values / scale.unsqueeze(2)).abs()
    code = sum((size >= tie if i % 2 else size > tie).int() for i, tie in enumerate(TIES))
    rows.codes.copy_(_spans(_pack((code + 8 * (values < 0)).flatten(1)), SPAN // 2))
    rows.scales.copy_(_spans(bytes_, groups))


@Kernel
@triton.jit
def _fp4_matmul(
    a_ptr,
    a_scale_ptr,
    a_factor_ptr,
    base_ptr,
    scale_ptr,
    factor_ptr,
    out_ptr,
    partials_ptr,
    counters_ptr,
    spans,
    N,
    columns,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    BN: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (tiles of BN columns, SPLIT_K)."""
    tile, split = tl.program_id(0), tl.program_id(1)
    per_split = tl.cdiv(spans, SPLIT_K)
    first = split * per_split
    m = tl.arange(0, 16)
    n = tile * BN + tl.arange(0, BN)
    pair = tl.arange(0, SPAN // 2)
    group = tl.arange(0, SPAN // GROUP)
    acc = tl.zeros((16, BN), tl.float32)
    wait(PDL)
    for span in tl.range(first, tl.minimum(first + per_split, spans), num_stages=STAGES):
        column = span * N + n
        row = span * 16 + m
        w = tl.load(base_ptr + column[None, :] * (SPAN // 2) + pair[:, None])
        w_scale = tl.load(scale_ptr + column[:, None] * (SPAN // GROUP) + group[None, :])
        a = tl.load(a_ptr + row[:, None] * (SPAN // 2) + pair[None, :])
        a_scale = tl.load(a_scale_ptr + row[:, None] * (SPAN // GROUP) + group[None, :])
        acc = tl.dot_scaled(a, a_scale, FORMAT, w, w_scale, FORMAT, acc)
    release(PDL)
    if arrive((acc,), partials_ptr, counters_ptr, tile, split, BN, SPLIT_K):
        acc = gather(acc, partials_ptr, counters_ptr, tile, BN, SPLIT_K)
        acc *= tl.load(a_factor_ptr + m)[:, None] * tl.load(factor_ptr + n)[None, :]
        out = out_ptr + m[:, None] * columns + n[None, :]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=n[None, :] < columns)


def plan(matrix: Fp4Matrix) -> SplitPlan:
    """Return how to split the GEMM of a matrix, for any activations; a program gets at least two spans if possible."""
    spans, columns, _ = matrix.codes.shape
    tiles = columns // BN
    return SplitPlan(tiles, BN, max(1, min(PROGRAMS // tiles, spans // 2)), STAGES=3, num_warps=2)


def fp4_matmul(rows: Fp4Rows, matrix: Fp4Matrix, out: Tensor, workspace: SplitWorkspace) -> None:
    """Write a @ W^T, a from `quantize_rows_fp4`, into out, float32 or float16 [16, n].

    Needs compute capability 12; other chips emulate the product, slower than with planes.
    """
    split_plan = plan(matrix)
    _fp4_matmul[(split_plan.tiles, split_plan.SPLIT_K)](
        rows.codes,
        rows.scales,
        rows.factor,
        matrix.codes,
        matrix.scales,
        matrix.factor,
        out,
        workspace.partials,
        workspace.counters,
        matrix.codes.shape[0],
        matrix.codes.shape[1],
        out.shape[1],
        GROUP=matrix.group,
        SPAN=SPAN,
        BN=split_plan.BN,
        SPLIT_K=split_plan.SPLIT_K,
        STAGES=split_plan.STAGES,
        num_warps=split_plan.num_warps,
        **every_launch(out.device),
    )


def fp4_matmul_reference(rows: Fp4Rows, matrix: Fp4Matrix, out: Tensor, workspace: SplitWorkspace) -> None:
    """Do what `fp4_matmul` does, in torch and float32."""
    out.copy_(rows.dense[:, : matrix.k] @ matrix.dense.T)
