"""The whole pair with the kernels themselves, in Triton's interpreter: every way gives the same text, to the token.

The oracle of the numbers is the same pair in float32 with the references, which is checked against Hugging Face.
"""

from dataclasses import replace

import pytest
import torch

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import KERNELS, REFERENCES
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
