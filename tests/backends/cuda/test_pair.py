"""The whole pair on a CPU, references in place of kernels, against Hugging Face's models and the torch reference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from localdflash.backends.cuda.assembly import load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair, StepModes
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.backends.cuda.stepper import StepMode
from localdflash.backends.reference.dflash_files import load as load_drafter
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.base.errors import ContextOverflow, LocaldflashError, UsageError
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.load_options import Options
from tests.support.converted_models import MODELS, Case, case_of, ids_of
from tests.support.cuda_pairs import CPU, answer

COPYING = [3, 5, 8, 13, 21, 34] * 5  # repeats, so that lookup drafts


def open_pair(target: Path, drafter: Path | None = None, **settings: Any) -> CudaPair:
    return load_pair(target, drafter, CPU, Options(**settings), REFERENCES)


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, CudaPair]:
    torch.manual_seed(0)
    case = case_of(request.param, "Q8_0")
    return case, open_pair(case.write(tmp_path_factory.mktemp("model") / "model.gguf", "Q8_0"))


@pytest.fixture(scope="module")
def drafting(tiny_pair: Path) -> CudaPair:
    return open_pair(tiny_pair / "target.gguf", tiny_pair / "drafter.gguf")


def run(pair: CudaPair, ids: Sequence[int], count: int, **settings: Any) -> list[int]:
    ends = frozenset(settings.pop("ends", ()))
    return answer(pair, ids, count, SamplingParams(**settings), ends=ends)


# Against Hugging Face


@torch.inference_mode()
def test_logits_are_those_of_hugging_face(case: tuple[Case, CudaPair], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.backends.cuda.cuda_pair.MAX_STEPS_IN_FLIGHT", 1)  # the next overwrites logits
    (model, pair), ids = case, ids_of(75)
    expected = model.model(torch.tensor([ids])).logits[0]
    assert float(expected.std()) > 0.5
    for length in (1, 16, 17, 75):  # within a tile, a whole one, and several
        pair.forget()
        pair.prefill(ids[:length])
        pair.step(Sampler(SamplingParams(temperature=1.0, seed=1)), 1)
        torch.testing.assert_close(pair.stepper.sampling.logits[0], expected[length - 1], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_greedy_output_is_that_of_hugging_face_drafted_or_not(case: tuple[Case, CudaPair]) -> None:
    model, pair = case
    ids = list(COPYING)
    for _ in range(24):
        ids.append(int(model.model(torch.tensor([ids])).logits[0, -1].argmax()))
    for mode in ("plain", "lookup"):
        assert run(pair.with_mode(mode), COPYING, 24) == ids[len(COPYING) :]


# With a drafter


SEEDED: Any = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 7, "repetition_penalty": 1.1}


@pytest.mark.parametrize("settings", [{}, SEEDED], ids=str)
def test_drafts_do_not_change_a_token(drafting: CudaPair, settings: dict[str, Any]) -> None:
    ids = ids_of(29, 1) + COPYING
    plain = run(drafting.with_mode("plain"), ids, 30, **settings)
    modes: tuple[StepMode, ...] = ("lookup", "block", "draft")
    for mode in modes:
        assert run(drafting.with_mode(mode), ids, 30, **settings) == plain


def test_proposals_are_those_of_the_torch_drafter(drafting: CudaPair, tiny_pair: Path) -> None:
    """At every step the drafter has the same context as the torch drafter: prompt and accepted rows."""
    model, drafter = load_decoder(tiny_pair / "target.gguf"), load_drafter(tiny_pair / "drafter.gguf")
    target = TorchTarget(model, taps=drafter.config.taps)
    oracle = DFlashDrafter(drafter, model.embed_tokens.weight, model.lm_head.weight)
    ids, pair, sampler = ids_of(25) + COPYING, drafting.with_mode("block"), Sampler(SamplingParams())
    drafting.set_documents([[*ids, *run(drafting.with_mode("plain"), ids, 150)]])  # long drafts that are accepted
    pair.forget()
    pair.prefill(ids)
    oracle.observe(ids[:-1], target.extend(ids[:-1]))
    longest = 0
    for _ in range(12):
        pair.reset_device(len(pair.ids) - 1)
        pair.stepper.catch_up()
        pair.stepper.draft_block(8)
        proposed = pair.stepper.draft[1 : drafter.config.block_size].tolist()
        anchor = pair.ids[-1]
        assert proposed == list(oracle.propose(anchor, drafter.config.block_size - 1).tokens)
        pair.reset_device(len(pair.ids) - 1)
        fresh = [anchor, *pair.step(sampler, 16).tokens[:-1]]
        oracle.observe(fresh, target.extend(fresh))
        longest = max(longest, len(fresh))
    drafting.set_documents([])
    assert longest > 8  # several rows of one verify were handed on


# What a user of `Pair` relies on


def test_the_context_is_filled_to_its_last_token_and_bad_calls_are_refused(tiny_pair: Path) -> None:
    pair = open_pair(tiny_pair / "target.gguf", tiny_pair / "drafter.gguf", context=96)
    request = Request(ids_of(50), 1000)
    tokens = [token for step in generate(pair, request) for token in step.tokens]
    assert request.finish_reason == "context"
    assert len(tokens) == 96 - 50
    with pytest.raises(ContextOverflow, match="full"):
        pair.step(Sampler(SamplingParams()), 1)
    with pytest.raises(ContextOverflow, match="96"):
        pair.prefill(ids_of(96))
    with pytest.raises(UsageError, match="empty"):
        pair.prefill([])


def test_decoding_one_request_without_drafts_changes_nothing_else(drafting: CudaPair) -> None:
    ids, pair = ids_of(20) + COPYING, drafting.with_mode("block")
    expected = run(pair, ids, 30)
    rates = [(record.ms, record.tokens) for record in pair.modes.records.values()]
    plain = Request(ids, 30, SamplingParams(), draft=False)
    steps = list(generate(pair, plain))
    assert [token for step in steps for token in step.tokens] == expected
    assert {(step.drafted, step.drafter, len(step.tokens)) for step in steps} == {(0, "none", 1)}
    assert [(record.ms, record.tokens) for record in pair.modes.records.values()] == rates
    again = list(generate(pair, Request([*ids, *expected], 20)))
    assert [token for step in again for token in step.tokens] == run(drafting.with_mode("block"), [*ids, *expected], 20)
    assert sum(step.drafted for step in again)


def test_invalid_logits_fail_only_their_request(drafting: CudaPair) -> None:
    pair, ids = drafting.with_mode("block"), ids_of(30)
    expected, gain = run(pair, ids, 20), pair.stepper.target.final_gain
    first = float(gain[0])
    gain[0] = float("nan")
    with pytest.raises(LocaldflashError, match="not numbers"):
        run(pair, ids, 20)
    gain[0] = first
    assert run(pair, ids, 20) == expected


def simulate(
    tokens: dict[StepMode, int], ms: dict[StepMode, float], steps: int = 2000
) -> tuple[dict[StepMode, int], float]:
    """Return how often each mode was chosen, given its tokens per step, and the tokens per millisecond overall."""
    modes, steps_by_mode, spent, token_count = StepModes(dict(ms)), dict.fromkeys(ms, 0), 0.0, 0
    for _ in range(steps):
        mode = modes.choose()
        modes.record_step(mode, tokens[mode], ms[mode])
        steps_by_mode[mode] += 1
        spent += ms[mode]
        token_count += tokens[mode]
    return steps_by_mode, token_count / spent


@pytest.mark.parametrize(
    ("tokens", "best"),
    [
        ({"lookup": 1, "block": 4}, "block"),
        ({"lookup": 1, "block": 1}, "lookup"),
        ({"lookup": 9, "block": 9}, "lookup"),
    ],
)
def test_faster_mode_is_chosen(tokens: dict[StepMode, int], best: StepMode) -> None:
    steps_by_mode, rate = simulate(tokens, {"lookup": 1.0, "block": 1.3})
    assert steps_by_mode[best] > 0.9 * sum(steps_by_mode.values())
    assert rate > 0.97 * max(tokens["lookup"], tokens["block"] / 1.3)
