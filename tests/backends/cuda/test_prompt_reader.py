"""Prompts read in blocks: the same results as in tiles, and a cached prefix with the bits of a fresh one."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.engine.pair import SavedSequence
from tests.support.cuda_pairs import load_on_cpu
from tests.support.tiny_models import EXPERTS, SHAPE, write_drafter, write_target

BLOCK, CONTEXT = 64, 330


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaPair]:
    folder = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localdflash.backends.cuda.prompt_reader.BLOCK_TOKENS", (BLOCK, BLOCK // 2, BLOCK // 4))
        yield load_on_cpu(write_target(folder / "target.gguf", SHAPE), write_drafter(folder, SHAPE), context=CONTEXT)


def caches(pair: CudaPair, length: int) -> list[Tensor]:
    """Return the first slots of K and V of every layer of target and drafter."""
    return [tensor[:length].clone() for group in pair._layers() for tensor in group]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(SHAPE.vocab_size), k=length)


def fresh(pair: CudaPair, ids: Sequence[int]) -> list[Tensor]:
    pair.forget()
    pair.prefill(ids)
    return caches(pair, len(ids) - 1)


def test_block_matches_tiles(pair: CudaPair, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt(2 * BLOCK + BLOCK // 2 + BLOCK // 4 + 9)
    blocks = fresh(pair, ids)
    assert pair._in_blocks == len(ids) - 9
    monkeypatch.setattr(pair.stepper.reader, "sizes", ())
    tiles = fresh(pair, ids)
    assert pair._in_blocks == 0
    for one, other in zip(blocks, tiles, strict=True):
        assert float((one.float() - other.float()).abs().max()) < 2e-4 * float(other.float().abs().max())


@pytest.mark.parametrize("seed", range(12))
def test_a_cached_prefix_has_the_bits_of_a_fresh_one(pair: CudaPair, seed: int) -> None:
    """The earlier sequence, the length of the prefix and the kind of storage are random."""
    chance, text = random.Random(seed), prompt(CONTEXT - 20, seed)
    pair.forget()
    saved = list[SavedSequence]()
    for _ in range(8):
        common = chance.choice([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, chance.randrange(1, len(text))])
        length = max(common, chance.choice([BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, chance.randrange(2, len(text))]))
        ids = [*text[:common], *prompt(length - common, chance.randrange(3))]
        if saved and chance.random() < 0.3:
            pair.load(chance.choice(saved))
        pair.prefill(ids)
        actual = caches(pair, len(ids) - 1)
        if chance.random() < 0.3:
            saved.append(pair.save())
        read = pair._in_blocks
        expected = fresh(pair, ids)
        assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))
        assert read == pair._in_blocks


def test_a_mixture_has_no_reader(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf", replace(SHAPE, **EXPERTS))
    assert load_on_cpu(target, None, context=CONTEXT).stepper.reader is None
