"""A short head of the CPU engine: its rows weight by weight, its proposals against numpy on the logits of the whole."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.cpu.binding import PackedDrafter, open_drafter, open_target
from localdflash.backends.cpu.cpu_drafter import CpuDFlashDrafter
from localdflash.backends.cpu.cpu_library import ThreadPool, address
from localdflash.backends.cpu.cpu_sizes import CpuSizes
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.cpu.packing import KINDS, PackedMatrix, pack_rows
from localdflash.models.memory.fit import AS_IT_IS
from localdflash.models.memory.parts import DRAFTER
from localdflash.models.weights.ggml_types import GGMLType
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.packed_models import QUANTIZED, dequantized, random_blocks, unpacked
from tests.support.shortened import shortened

TAPS = (1, 3, 4)
SOME = sorted({0, 1, 14, 15, 16, 17, 31, 32, *range(40, 500, 3), 511})
Floats = NDArray[np.float32]


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 50])
def test_its_weights_are_those_of_the_rows(kind: GGMLType, count: int) -> None:
    random = np.random.default_rng(count)
    raw = random_blocks(random, kind, (70, 512))
    whole = PackedMatrix(KINDS[kind], 70, 512, 1, *(array[np.newaxis] for array in pack_rows(raw, kind)))
    ids = np.sort(random.permutation(70)[:count]).astype(np.int32)
    short = select_rows(whole, ids)
    assert (short.kind, short.n, short.k) == (whole.kind, count, 512)
    np.testing.assert_array_equal(unpacked(short)[0], dequantized(kind, raw)[ids])
    for ours, theirs in zip(whole_arrays(short), whole_arrays(whole), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == (1, -(-count // 16), *theirs.shape[2:])
        assert ours.flags.c_contiguous
        assert ours.ctypes.data % 64 == 0


def whole_arrays(matrix: PackedMatrix) -> list[NDArray[np.generic]]:
    return [array for array in (matrix.codes, matrix.scales, matrix.supers) if array is not None]


# Proposals


@pytest.fixture
def target(tiny_pair: Path, new_team: Callable[..., ThreadPool]) -> CpuTarget:
    return CpuTarget(open_target(tiny_pair / "target.gguf"), new_team(), taps=TAPS)


@pytest.fixture
def packed(tiny_pair: Path) -> PackedDrafter:
    return open_drafter(tiny_pair / "drafter.gguf")


def features(count: int) -> Floats:
    return np.random.default_rng(count).standard_normal((count, 3 * 64)).astype(np.float32)


def logits_of(drafter: CpuDFlashDrafter, anchor: int) -> Floats:
    """The logits [slots, rows of the head] of a draft."""
    logits = np.empty((drafter.config.block_size, drafter.head.n), np.float32)
    drafter._pass.logits = address(logits)
    drafter.propose(anchor, 7)
    drafter._pass.logits = None
    return logits[1:]


@needs_library
@pytest.mark.parametrize("ids", [[7], SOME])
def test_it_proposes_the_best_of_its_rows(ids: list[int], target: CpuTarget, packed: PackedDrafter) -> None:
    whole = CpuDFlashDrafter(packed, target)
    short = CpuDFlashDrafter(replace(packed, config=replace(packed.config, short=tuple(ids))), target)
    proposed = set[int]()
    for length in range(1, 30):
        for one in (whole, short):
            one.rollback(0)
            one.observe([0] * length, features(length))
        wanted = logits_of(whole, length)[:, ids]
        found = short.propose(length, 7)
        assert list(found.tokens) == [ids[best] for best in wanted.argmax(1)]
        shares = np.exp(wanted - wanted.max(1, keepdims=True)).sum(1)
        assert np.allclose(found.confidence, 1 / shares, rtol=1e-4)
        proposed |= set(found.tokens)
    assert len(proposed) == 1 or len(proposed) > 10


@needs_library
def test_of_equal_rows_the_lowest_id_wins(target: CpuTarget, packed: PackedDrafter) -> None:
    pairs = np.arange(target.vocab_size, dtype=np.int32) // 2 * 2
    target.packed = replace(target.packed, head=select_rows(target.packed.head, pairs))
    short = replace(packed.config, short=tuple(range(1, target.vocab_size)))
    drafter = CpuDFlashDrafter(replace(packed, config=short), target)
    for length in range(1, 20):
        drafter.rollback(0)
        drafter.observe([0] * length, features(length))
        assert all(token % 2 == 0 or token == 1 for token in drafter.propose(3, 7).tokens)


@needs_library
@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_files_carry_the_list_and_the_plan_counts_it(
    form: str, tiny_pair: Path, tmp_path: Path, target: CpuTarget
) -> None:
    folder = shortened(tiny_pair, tmp_path / "pair", SOME)
    for _ in range(2):  # packed now, and packed before
        packed = open_drafter(folder / f"drafter.{form}")
        assert packed.config.short == tuple(SOME)
    drafter = CpuDFlashDrafter(packed, target)
    drafter.observe([0] * 9, features(9))
    assert set(drafter.propose(3, 7).tokens) <= set(SOME)
    planned = CpuSizes(folder / "target.gguf", folder / f"drafter.{form}").parts(64, AS_IT_IS)
    assert planned[DRAFTER] == drafter.weight_bytes == packed.nbytes + drafter.head.nbytes + 4 * len(SOME)
    before = CpuSizes(tiny_pair / "target.gguf", tiny_pair / f"drafter.{form}").parts(64, AS_IT_IS)
    assert before[DRAFTER] == packed.nbytes


@needs_library
def test_another_list_is_seen_although_the_weights_are_packed(tiny_pair: Path, tmp_path: Path) -> None:
    for number, ids in enumerate(([1, 2, 3], [4, 5])):
        folder = shortened(tiny_pair, tmp_path / str(number), ids)
        for form in ("gguf", "safetensors"):
            assert open_drafter(folder / f"drafter.{form}").config.short == tuple(ids)
