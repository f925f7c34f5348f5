"""What tells two launches apart, and launches that are noted instead of run."""

from typing import Any

import torch
import triton
import triton.language as tl

from localdflash.kernels.cuda.launch import Kernel, Launch, withheld


@Kernel
@triton.jit
def _copy(source, out, n, scale, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(source + i, mask=i < n, other=0.0) * scale, mask=i < n)


@Kernel
@triton.jit(do_not_specialize=["n"])
def _fill(out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, 1.0, mask=i < n)


WHOLE = torch.zeros(64)


def launch(source: Any = WHOLE, n: int = 32, scale: float = 2.0, block: int = 32, **options: Any) -> Launch:
    with withheld() as launches:
        _copy[(1,)](source, torch.zeros(64), n, scale, BLOCK=block, **options)
    return launches[0]


def test_inside_nothing_runs_and_outside_it_does() -> None:
    source, out = torch.ones(32), torch.zeros(32)
    with withheld() as launches:
        _copy[(1,)](source, out, 32, 2.0, BLOCK=32)
    assert (len(launches), float(out.sum())) == (1, 0.0)
    _copy[(1,)](source, out, 32, 2.0, BLOCK=32)
    assert (len(launches), float(out.sum())) == (1, 64.0)


def test_numbers_and_addresses_alone_make_no_variant() -> None:
    assert launch().variant == launch(torch.ones(64), 48, 3.5).variant
    assert launch(n=33).variant == launch(n=35).variant
    with withheld() as launches:
        for n in (1, 2, 16):
            _fill[(1,)](torch.zeros(32), n, BLOCK=32)  # n is not specialized
    assert len({one.variant for one in launches}) == 1


def test_what_triton_compiles_anew_is_another_variant() -> None:
    others: list[dict[str, Any]] = [{"source": WHOLE[1:]}, {"source": WHOLE.half()}, {"source": None}, {"n": 33},
                                    {"n": 1}, {"n": 2**31}, {"block": 64}, {"num_warps": 1}]  # fmt: skip
    assert len({launch(**each).variant for each in ({}, *others)}) == 1 + len(others)
