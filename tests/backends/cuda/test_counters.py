"""A step whose predecessor lost a ticket, or was aborted, is as right as any other: kernels in the interpreter."""

from typing import Any

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.assembly import CudaSettings, load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import KERNELS
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from tests.support.tiny_models import SHAPE, write_drafter, write_target

PROMPT = [7, 8, 9, 10, 11, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> CudaPair:
    folder = tmp_path_factory.mktemp("tiny")
    target, drafter = write_target(folder / "target.gguf", SHAPE), write_drafter(folder, SHAPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "localdflash.backends.cuda.assembly.measure", lambda _stepper, _runner, ways: dict.fromkeys(ways, 1.0)
        )
        return load_pair(target, drafter, torch.device("cpu"), CudaSettings(context=256), KERNELS)


def counters(pair: CudaPair) -> list[Tensor]:
    stepper = pair.stepper
    shared = stepper.shared
    return [
        shared.workspace.counters,
        shared.scratch.counter,
        shared.head_scratch.counter,
        stepper.lookup_scratch,
        stepper.sampling.scratch.seen,
    ]


def answer(pair: CudaPair, poison: int, params: SamplingParams) -> tuple[list[int], Tensor]:
    """Tokens and hidden states of the step after a prompt, with tickets lost before each sequence of launches."""
    pair = pair.only("block")
    pair.forget()
    with pytest.MonkeyPatch.context() as patch:
        run = pair.runner._run

        def poisoned(*arguments: Any) -> None:
            for each in counters(pair)[:-1]:
                each.fill_(poison)
            run(*arguments)

        counters(pair)[-1].fill_(poison)  # whole requests see what a penalty had left
        patch.setattr(pair.runner, "_run", poisoned)
        patch.setattr("localdflash.backends.cuda.cuda_pair.AHEAD", 1)
        pair.prefill(PROMPT)
        tokens = list(pair.step(Sampler(params), 16).tokens)
    return tokens, pair.stepper.stack.buffers.x.clone()


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.8, seed=2, repetition_penalty=1.3)])
def test_a_lost_ticket_ends_with_its_own_step(pair: CudaPair, params: SamplingParams) -> None:
    tokens, hidden = answer(pair, 0, params)
    for lost in (1, -3):
        found, there = answer(pair, lost, params)
        assert found == tokens
        assert torch.equal(there, hidden)


def test_nothing_is_left_behind(pair: CudaPair) -> None:
    answer(pair, 5, SamplingParams(temperature=0.8, seed=2))
    assert not any(bool(each.any()) for each in counters(pair))
