"""Kernels with one fault each, which the checks must find: a check that finds nothing proves nothing."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import every_launch, wait
from tests.kernels.cuda.aot.case import Case


@triton.jit
def _impatient(x_ptr, out_ptr, PDL: tl.constexpr):
    """Reads its input before it waits."""
    i = tl.arange(0, 128)
    x = tl.load(x_ptr + i)
    wait(PDL)
    tl.store(out_ptr + i, x)


@triton.jit
def _unfenced(x_ptr, partials_ptr, counter_ptr, out_ptr, PDL: tl.constexpr):
    """Takes a ticket that does not order the stores before it."""
    i = tl.arange(0, 128)
    wait(PDL)
    tl.store(partials_ptr + tl.program_id(0) * 128 + i, tl.load(x_ptr + i))
    ticket = tl.atomic_add(counter_ptr, 1, sem="relaxed", scope="gpu")
    if ticket == 1:
        first = tl.load(partials_ptr + i, cache_modifier=".cg")
        tl.store(out_ptr + i, first + tl.load(partials_ptr + 128 + i, cache_modifier=".cg"))


@triton.jit
def _product(a_ptr, b_ptr, out_ptr, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    """A plain GEMM: with many stages its shared memory is too large, with one its loads block."""
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, K, BK, num_stages=STAGES):
        a = tl.load(a_ptr + m[:, None] * K + start + k[None, :])
        acc = tl.dot(a, tl.load(b_ptr + (start + k)[:, None] * BN + n[None, :]), acc)
    tl.store(out_ptr + m[:, None] * BN + n[None, :], acc)


def product(stages: int, **options: int) -> None:
    """Launch `_product` of [64, 4096] and [4096, 128]."""
    a, b, out = (torch.empty(*shape, device="meta") for shape in ((64, 4096), (4096, 128), (64, 128)))
    _product[(1,)](a.half(), b.half(), out, 4096, BM=64, BN=128, BK=128, STAGES=stages,
                   enable_fp_fusion=True, **options)  # fmt: skip


def product_tile(constants: dict[str, int]) -> tuple[int, int]:
    """One round of the loop of `_product`."""
    return constants["BN"] * constants["BK"] * 2, constants["BM"] * constants["BN"] * constants["BK"]


def impatient() -> None:
    """Launch `_impatient`."""
    x = _vector()
    _impatient[(1,)](x, _vector(), **every_launch(x.device))


def unfenced() -> None:
    """Launch `_unfenced`."""
    x = _vector()
    counter = torch.empty(1, dtype=torch.int32, device="meta")
    _unfenced[(2,)](x, torch.empty(256, device="meta"), counter, _vector(), **every_launch(x.device))


def _vector() -> Tensor:
    return torch.empty(128, device="meta")


CASES = (
    Case("trap: reads before it waits", impatient, capabilities=(120,)),
    Case("trap: ticket without order", unfenced, capabilities=(120,)),
    Case("trap: shared memory", lambda: product(4), product_tile, capabilities=(120,)),
    Case("trap: blocking loads", lambda: product(1), product_tile, capabilities=(120,)),
    Case("trap: spills", lambda: product(2, maxnreg=40), product_tile, capabilities=(120,)),
)
