"""The whole pair on a CPU, references in place of kernels, against Hugging Face's models and the torch reference."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from localdflash.backends.cuda.assembly import CudaSettings, load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.backends.cuda.stepper import Way
from localdflash.backends.reference.dflash_files import load as load_drafter
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.base.errors import ContextOverflow, LocaldflashError, UsageError
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.kernels.cuda.rounds import LIVE
from tests.support.converted_models import MODELS, Case, case_of, ids_of
from tests.support.cuda_pairs import CPU, answer

COPYING = [3, 5, 8, 13, 21, 34] * 5  # lookup finds its way in this


def open_pair(target: Path, drafter: Path | None = None, **settings: Any) -> CudaPair:
    return load_pair(target, drafter, CPU, CudaSettings(**settings), REFERENCES)


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
    monkeypatch.setattr("localdflash.backends.cuda.cuda_pair.AHEAD", 1)  # the next step would write over the logits
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
    for _ in range(40):
        ids.append(int(model.model(torch.tensor([ids])).logits[0, -1].argmax()))
    for way in ("plain", "lookup"):
        assert run(pair.only(way), COPYING, 40) == ids[len(COPYING) :]


# With a drafter


SEEDED: Any = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 7, "repetition_penalty": 1.1}


@pytest.mark.parametrize("settings", [{}, SEEDED, {"repetition_penalty": 5.0, "penalty_window": 64}], ids=str)
def test_drafts_do_not_change_a_token(drafting: CudaPair, settings: dict[str, Any]) -> None:
    ids = ids_of(29, 1) + COPYING
    plain = run(drafting.only("plain"), ids, 50, **settings)
    ways: tuple[Way, ...] = ("lookup", "block", "draft")
    for way in ways:
        assert run(drafting.only(way), ids, 50, **settings) == plain
    if settings:
        others = {"seed": 8} if "seed" in settings else {"repetition_penalty": 1.0}
        assert run(drafting.only("plain"), ids, 50, **settings | others) != plain


def test_proposals_are_those_of_the_torch_drafter(drafting: CudaPair, tiny_pair: Path) -> None:
    """At every step the drafter has the context that the torch one was given, prompt and accepted rows alike."""
    model, drafter = load_decoder(tiny_pair / "target.gguf"), load_drafter(tiny_pair / "drafter.gguf")
    target = TorchTarget(model, taps=drafter.config.taps)
    oracle = DFlashDrafter(drafter, model.embed_tokens.weight, model.lm_head.weight)
    ids, pair, sampler = ids_of(25) + COPYING, drafting.only("block"), Sampler(SamplingParams())
    drafting.set_documents([[*ids, *run(drafting.only("plain"), ids, 150)]])  # long drafts that are accepted
    pair.forget()
    pair.prefill(ids)
    oracle.observe(ids[:-1], target.extend(ids[:-1]))
    longest = 0
    for _ in range(12):
        pair.rollback(len(pair.ids))
        pair.stepper.catch_up()
        pair.stepper.fill_block(8)
        proposed = pair.stepper.draft[1 : drafter.config.block_size].tolist()
        anchor = pair.ids[-1]
        assert proposed == list(oracle.propose(anchor, drafter.config.block_size - 1).tokens)
        pair.rollback(len(pair.ids))
        fresh = [anchor, *pair.step(sampler, 16).tokens[:-1]]
        oracle.observe(fresh, target.extend(fresh))
        longest = max(longest, len(fresh))
    drafting.set_documents([])
    assert longest > 8  # several rows of one verify were handed on


def test_a_full_block_that_begins_at_the_anchor_drafts_what_one_verify_can_take(
    tiny_pair: Path, tmp_path: Path
) -> None:
    for name in ("target.gguf", "drafter.safetensors"):
        (tmp_path / name).symlink_to(tiny_pair / name)
    config = json.loads((tiny_pair / "config.json").read_text()) | {"block_size": 16, "sample_from_anchor": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, drafter = load_decoder(tmp_path / "target.gguf"), load_drafter(tmp_path / "drafter.safetensors")
    oracle = DFlashDrafter(drafter, model.embed_tokens.weight, model.lm_head.weight)
    assert (drafter.config.drafts, oracle.max_draft_tokens) == (16, 16)
    pair, ids = open_pair(tmp_path / "target.gguf", tmp_path / "drafter.safetensors").only("block"), ids_of(25)
    pair.prefill(ids)
    oracle.observe(ids[:-1], TorchTarget(model, taps=drafter.config.taps).extend(ids[:-1]))
    pair.rollback(len(pair.ids))
    pair.stepper.catch_up()
    pair.stepper.fill_block(16)
    found = pair.stepper.draft[1:].tolist()
    wanted = list(oracle.propose(ids[-1], 15).tokens)
    assert sum(a == b for a, b in zip(found, wanted, strict=True)) >= 14  # its weights have 8 bits here
    assert int(pair.stepper.state[LIVE]) == 16


# What a user of `Pair` relies on


def test_an_end_token_is_the_last_one(drafting: CudaPair) -> None:
    ids = ids_of(20) + COPYING
    free = run(drafting.only("plain"), ids, 40)
    end = free[11]
    expected = free[: free.index(end) + 1]
    for way in ("plain", "lookup", "block"):
        assert run(drafting.only(way), ids, 40, ends=[end]) == expected


def test_a_prompt_that_goes_on_is_computed_from_there(drafting: CudaPair) -> None:
    ids, pair = ids_of(50), drafting.only("block")
    pair.forget()
    answer = run(pair, ids, 20)
    longer = [*ids, *answer[:9], 4, 5, 6]
    assert pair.prefill(longer) == 2  # the last token is the anchor
    assert pair.prefill(longer[:30]) == 0
    assert run(pair, longer, 20) == run(drafting.only("plain"), longer, 20)


def test_a_cancelled_prefill_keeps_what_it_has(drafting: CudaPair) -> None:
    ids, pair, calls = ids_of(100), drafting.only("plain"), iter([False, False, True])
    pair.forget()
    assert pair.prefill(ids, lambda: next(calls)) == 64  # two tiles of 16 rows at a time
    assert pair.prefill(ids) == 99 - 64


def test_documents_are_copied_from(drafting: CudaPair) -> None:
    ids = ids_of(30)
    expected = run(drafting.only("plain"), ids, 30)
    drafting.set_documents([[*ids[-4:], *expected], [1, 2, 3]])
    pair = drafting.only("lookup")
    pair.forget()
    request = Request(ids, 30)
    assert [token for step in generate(pair, request) for token in step.tokens] == expected
    assert request.stats.tau > 8
    drafting.set_documents([])


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
    pair.prefill(ids_of(10))
    with pytest.raises(UsageError, match="roll back"):
        pair.rollback(11)


def test_plain_decoding_for_one_request_leaves_the_rest_as_it_was(drafting: CudaPair) -> None:
    ids, pair = ids_of(20) + COPYING, drafting.only("block")
    expected = run(pair, ids, 60)
    rates = [(record.ms, record.tokens) for record in pair.ways.records.values()]
    plain = Request(ids, 60, SamplingParams(), draft=False)
    steps = list(generate(pair, plain))
    assert [token for step in steps for token in step.tokens] == expected
    assert {(step.drafted, step.drafter, len(step.tokens)) for step in steps} == {(0, "none", 1)}
    assert [(record.ms, record.tokens) for record in pair.ways.records.values()] == rates
    again = list(generate(pair, Request([*ids, *expected], 20)))
    assert [token for step in again for token in step.tokens] == run(drafting.only("block"), [*ids, *expected], 20)
    assert sum(step.drafted for step in again)


def test_logits_that_are_no_numbers_fail_the_request_and_nothing_else(drafting: CudaPair) -> None:
    pair, ids = drafting.only("block"), ids_of(30)
    expected, gain = run(pair, ids, 20), pair.stepper.target.final_gain
    first = float(gain[0])
    gain[0] = float("nan")
    with pytest.raises(LocaldflashError, match="not numbers"):
        run(pair, ids, 20)
    gain[0] = first
    assert run(pair, ids, 20) == expected
