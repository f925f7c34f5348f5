"""Requests whose tokens the host chooses, against formulas and another backend, with and without drafts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.stepper import StepMode
from localdflash.backends.reference.decoder import Decoder
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.base.errors import LocaldflashError
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Pair
from localdflash.engine.sampling_params import SamplingParams
from tests.backends.cuda.test_pair import COPYING, open_pair
from tests.support.converted_models import ids_of
from tests.support.cuda_pairs import answer

MODES: tuple[StepMode, ...] = ("plain", "lookup", "block", "draft")
IDS = ids_of(30) + COPYING


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """The tensors are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pair(tiny_pair: Path) -> CudaPair:
    return open_pair(tiny_pair / "target.gguf", tiny_pair / "drafter.gguf")


@pytest.fixture(scope="module")
def model(tiny_pair: Path) -> Decoder:
    return load_decoder(tiny_pair / "target.gguf")


def run(pair: Pair, params: SamplingParams | None = None, **fields: Any) -> list[int]:
    return answer(pair, IDS, 24, params, **fields)


def check(pair: CudaPair, expected: list[int], params: SamplingParams, constraint: type | None = None) -> None:
    """Assert that every step mode gives the text, also with long, partly accepted drafts."""
    pair.set_documents([[*IDS[-4:], *expected[:20], 6, 6, 6]])
    for mode in MODES:
        assert run(pair.with_mode(mode), params, constraint=constraint and constraint()) == expected
    pair.set_documents([])


class Alternating:
    """Constraint that alternates even and odd tokens."""

    renormalizes = True
    newest = 0

    def mask(self) -> NDArray[np.bool_]:
        odd: NDArray[np.bool_] = np.arange(160) % 2 != self.newest % 2
        return odd

    def advance(self, token: int) -> None:
        assert self.mask()[token]
        self.newest = token

    def count_allowed(self, tokens: Sequence[int]) -> int:
        raise NotImplementedError

    def forced_tokens(self) -> Sequence[int]:
        raise NotImplementedError


def test_a_constraint_masks_every_row_of_a_draft(pair: CudaPair, model: Decoder) -> None:
    params = SamplingParams(0.8, seed=3)
    expected = run(HostPair(TorchTarget(model)), params, constraint=Alternating())
    assert [token % 2 for token in expected] == [1, 0] * 12
    check(pair, expected, params, Alternating)


def test_failing_constraint_drops_the_sequence_and_next_request_succeeds(pair: CudaPair) -> None:
    class Failing(Alternating):
        def advance(self, token: int) -> None:
            raise LocaldflashError("no")

    expected, blocks = run(pair.with_mode("plain")), pair.with_mode("block")
    with pytest.raises(LocaldflashError, match="no"):
        run(blocks, constraint=Failing())
    assert not blocks.ids
    assert run(blocks) == expected
