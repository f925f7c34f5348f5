"""The small kernels between the large ones: blocks, candidates, acceptance, lookup."""

import torch

from localdflash.kernels.accept import accept
from localdflash.kernels.block import gather_taps
from localdflash.kernels.lookup import lookup
from localdflash.kernels.top_k import TopKScratch, top_k
from tests.kernels.aot.case import META, SLOTS, Case, H, V, floats, halves, ints, rows


def _gather_taps() -> None:
    gather_taps(halves(32, 5 * H), ints(8)[1:2], *rows(5 * H))


def _top_k() -> None:
    top_k(floats(16, V), floats(16, 8), ints(16, 8), TopKScratch(META, V))


def _accept() -> None:
    accept(ints(16), ints(16), ints(SLOTS), ints(8), ints(64, 24))
    accept(ints(16), ints(16), ints(SLOTS), ints(8), ints(64, 24), ints(16), ints(18))


def _lookup() -> None:
    scratch = torch.empty(2, dtype=torch.int64, device=META)
    lookup(ints(SLOTS), ints(8), ints(16), ints(1 << 20), ints(1), scratch, 3, 15)


CASES = (
    Case("gather_taps", _gather_taps),
    Case("top_k", _top_k),
    Case("accept", _accept),
    Case("lookup", _lookup),
)
