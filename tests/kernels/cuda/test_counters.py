"""Counters are set back, all of them and nothing else; a ticket that was lost before is forgotten with that."""

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace, arrive, gather, set_back, set_back_reference


@pytest.mark.parametrize("op", [set_back, set_back_reference])
@pytest.mark.parametrize("slices", [True, False])
@pytest.mark.parametrize("tiles", [1, 255, 700])
def test_every_counter_is_zero_and_what_lies_beside_it_is_not(
    op: Callable[..., None], slices: bool, tiles: int
) -> None:
    sizes = [tiles, 32, 1, 2, 16]
    rooms = [torch.full((size + 2,), 7, dtype=torch.int64 if size == 2 else torch.int32) for size in sizes]
    counters = [room[1:-1] for room in rooms]
    op(*counters[:4], counters[4] if slices else None)
    for room in rooms[: 5 if slices else 4]:
        assert room.tolist() == [7, *[0] * (len(room) - 2), 7]
    assert slices or bool((rooms[4] == 7).all())


@triton.jit
def _sum(parts, out, partials, counters, SPLIT_K: tl.constexpr):
    tile, split = tl.program_id(0), tl.program_id(1)
    here = tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    acc = tl.load(parts + (tile * SPLIT_K + split) * 512 + here)
    if arrive((acc,), partials, counters, tile, split, 32, SPLIT_K):
        tl.store(out + tile * 512 + here, gather(acc, partials, counters, tile, 32, SPLIT_K))


@pytest.mark.parametrize("lost", [1, -1])
def test_a_ticket_that_was_lost_before_is_forgotten(lost: int) -> None:
    splits, parts = 4, torch.arange(3 * 4).view(3, 4, 1, 1).expand(3, 4, 16, 32).float()
    workspace = SplitWorkspace(torch.device("cpu"), [SplitPlan(3, 32, splits)])
    heads, last, found = (torch.zeros(n, dtype=torch.int64 if n == 2 else torch.int32) for n in (8, 1, 2))

    def is_right(step: int) -> bool:
        now, out = (parts + step).contiguous(), torch.zeros(3, 16, 32)
        counters = (workspace.partials, workspace.counters)
        _sum[(3, splits)](now, out, *counters, SPLIT_K=splits, enable_fp_fusion=True)
        return torch.equal(out, now.sum(1))

    assert is_right(1)
    workspace.counters[1] += lost
    assert not is_right(2)
    assert not is_right(3), "every later step would be wrong too"
    set_back(workspace.counters, heads, last, found)
    assert is_right(4)
    assert is_right(5)
