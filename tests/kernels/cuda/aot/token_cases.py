"""The small kernels between the large ones: candidates, sampling, acceptance, lookup."""

import torch

from localdflash.kernels.cuda.lookup_kernel import lookup
from localdflash.kernels.cuda.residual import gather_taps
from localdflash.kernels.cuda.rounds import accept, begin, caught_up, next_tokens, propose
from localdflash.kernels.cuda.sample import SampleScratch, sample
from localdflash.kernels.cuda.selector import TopKScratch, select, top_k
from localdflash.kernels.cuda.split_k import set_back
from tests.kernels.cuda.aot.case import META, SLOTS, Case, H, V, floats, halves, ints, rows


def _gather_taps() -> None:
    gather_taps(halves(32, 5 * H), ints(8)[1:2], *rows(5 * H))


def _top_k() -> None:
    top_k(floats(16, V), floats(16, 16), ints(16, 16), TopKScratch(META, V))


def _select() -> None:
    found = (floats(16, 16), ints(16, 16), floats(16, 256))
    select(*found, halves(V, 256), halves(V, 256), ints(16), ints(16), 1, 7)


def _accept() -> None:
    accept(ints(16), ints(16), ints(SLOTS), ints(8), ints(64, 24))


def _lookup() -> None:
    scratch = torch.empty(2, dtype=torch.int64, device=META)
    lookup(ints(SLOTS), ints(8), ints(16), ints(1 << 20), ints(1), scratch, 3, 15)


def _rounds() -> None:
    state, draft = ints(8), ints(16)
    begin(ints(SLOTS), state, draft, 151669)
    next_tokens(ints(SLOTS), state, ints(2, 16))
    propose(ints(16), state, draft, 1, 15)
    caught_up(state)


def _set_back() -> None:
    set_back(ints(192), ints(32), ints(1), torch.empty(2, dtype=torch.int64, device=META), ints(16))


def _sample() -> None:
    arguments = (floats(4), ints(4), ints(SLOTS), ints(16), ints(8)[0:1], ints(16))
    sample(floats(16, V), *arguments, SampleScratch.empty(V, META))


CASES = (
    Case("gather_taps", _gather_taps),
    Case("top_k", _top_k),
    Case("select", _select),
    Case("accept", _accept),
    Case("lookup", _lookup),
    Case("rounds", _rounds),
    Case("set_back", _set_back),
    Case("sample", _sample),
)
