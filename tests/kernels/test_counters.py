"""Counters are set back, all of them and nothing else."""

from collections.abc import Callable

import pytest
import torch

from localdflash.kernels.counters import set_back, set_back_reference


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
