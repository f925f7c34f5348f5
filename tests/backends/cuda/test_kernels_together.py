"""The whole pair with the kernels themselves, in Triton's interpreter: every way gives the same text, to the token.

The oracle of the numbers is the same pair in float32 with the references, which is checked against Hugging Face.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import KERNELS, REFERENCES
from localdflash.backends.cuda.stepper import Way
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.kernels.cuda.rounds import CONTEXT
from tests.support.cuda_pairs import load_on_cpu
from tests.support.tiny_models import EXPERTS, SHAPE, write_drafter, write_target

PROMPT = [7, 8, 9, 10, 11, 7, 8, 9, 10]


@pytest.fixture(
    scope="module",
    params=["dense f16", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("dense int8", "experts"))],
)
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[CudaPair, CudaPair]:
    """The same pair with the kernels, and in float32."""
    folder = tmp_path_factory.mktemp("tiny")
    shape = replace(SHAPE, **EXPERTS) if request.param == "experts" else SHAPE
    target, drafter = write_target(folder / "target.gguf", shape), write_drafter(folder, shape)
    kv = "int8" if "int8" in request.param else "f16"
    kernels, exact = (load_on_cpu(target, drafter, ops, context=256, kv=kv) for ops in (KERNELS, REFERENCES))
    return kernels, exact


def run(pair: CudaPair, way: Way, count: int, params: SamplingParams | None = None) -> tuple[list[int], float]:
    pair = pair.only(way)
    pair.forget()
    request = Request(PROMPT, count, params or SamplingParams())
    return [token for step in generate(pair, request) for token in step.tokens], request.stats.tau


@pytest.mark.timeout(300)
@pytest.mark.nightly
@pytest.mark.parametrize("pairs", ["dense int8", "experts"], indirect=True)
def test_every_way_gives_the_same_text(pairs: tuple[CudaPair, CudaPair]) -> None:
    kernels, _ = pairs
    plain, _ = run(kernels, "plain", 4)
    kernels.set_documents([[*PROMPT, *plain[:2], 3, 3, 3]])  # a draft that is right for a while
    lookup, tau = run(kernels, "lookup", 4)
    block, _ = run(kernels, "block", 4)
    assert lookup == plain
    assert block == plain
    assert tau > 1
    kernels.set_documents([])


HOST = SamplingParams(presence_penalty=1.0, logit_bias=((5, 0.5),))  # what the host chooses


@pytest.mark.timeout(300)
@pytest.mark.nightly
@pytest.mark.parametrize("pairs", ["dense f16"], indirect=True)
@pytest.mark.parametrize("params", [SamplingParams(1.0, 20, 0.9, repetition_penalty=1.2, seed=3), HOST], ids=str)
def test_sampled_text_is_the_same_too(pairs: tuple[CudaPair, CudaPair], params: SamplingParams) -> None:
    kernels, _ = pairs
    plain, _ = run(kernels, "plain", 2, params)
    assert run(kernels, "block", 2, params)[0] == plain


@pytest.mark.timeout(300)
def test_hidden_states_and_drafts_are_those_of_float32(pairs: tuple[CudaPair, CudaPair]) -> None:
    """Before any token is chosen, where a near tie could hide or fake a difference."""
    for pair in pairs:
        pair.forget()
        pair.prefill(PROMPT)
        pair.stepper.draft.copy_(torch.arange(20, 36))
        pair.stepper.state[2] = 16
        pair.stepper.forward(2)
    ours, exact = (pair.stepper.stack for pair in pairs)
    assert int(pairs[0].stepper.state[CONTEXT]) == len(PROMPT) - 1
    scale = exact.buffers.x.abs().max()
    tolerance = 0.06 if pairs[0].stepper.cache.k.dtype == torch.int8 else 0.02
    assert (ours.buffers.x - exact.buffers.x).abs().max() < tolerance * scale
    for pair in pairs:
        pair.stepper.catch_up()
        pair.stepper.fill_block(2)
    drafts = [pair.stepper.block.stack.buffers.x for pair in pairs if pair.stepper.block]
    assert (drafts[0] - drafts[1])[:8].abs().max() < tolerance * drafts[1][:8].abs().max()


def answer(pair: CudaPair, poison: int, params: SamplingParams) -> tuple[list[int], Tensor]:
    """Tokens and hidden states of the step after a prompt, with tickets lost before each sequence of launches."""
    pair, shared, seen = pair.only("block"), pair.stepper.shared, pair.stepper.sampling.scratch.seen
    counters = (
        shared.workspace.counters,
        shared.scratch.counter,
        shared.head_scratch.counter,
        pair.stepper.lookup_scratch,
    )
    pair.forget()
    with pytest.MonkeyPatch.context() as patch:
        run = pair.runner._run

        def poisoned(*arguments: Any) -> None:
            for each in counters:
                each.fill_(poison)
            run(*arguments)

        seen.fill_(poison)  # whole requests see what a penalty had left
        patch.setattr(pair.runner, "_run", poisoned)
        patch.setattr("localdflash.backends.cuda.cuda_pair.AHEAD", 1)
        pair.prefill(PROMPT)
        tokens = list(pair.step(Sampler(params), 16).tokens)
    assert not any(bool(each.any()) for each in counters)
    return tokens, pair.stepper.stack.buffers.x.clone()


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("pairs", ["dense f16"], indirect=True)
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.8, seed=2, repetition_penalty=1.3)])
def test_a_lost_ticket_ends_with_its_own_step(pairs: tuple[CudaPair, CudaPair], params: SamplingParams) -> None:
    pair, _ = pairs
    tokens, hidden = answer(pair, 0, params)
    for lost in (1, -3):
        found, there = answer(pair, lost, params)
        assert found == tokens
        assert torch.equal(there, hidden)
