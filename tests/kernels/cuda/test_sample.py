"""Sampling on the device against the sampler on the host, and samples against the distribution."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, gumbel_r, kstest
from torch import Tensor

from localdflash.backends.cuda.cuda_pair import UNMODIFIED_LOGITS
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.kernels.cuda.noise import noise_reference
from localdflash.kernels.cuda.penalty import penalise, penalise_reference
from localdflash.kernels.cuda.sample import SampleScratch, sample, sample_reference, survivors

Op = Callable[..., None]
OPS = pytest.mark.parametrize("op", [sample, sample_reference])
CPU = torch.device("cpu")
TILE, GROUP, PART = 64, 8, 8
HOT = SamplingParams(temperature=1.0, seed=5)
TEMPERATURES = st.sampled_from([0.05, 0.7, 1.0, 3.0])
TOP_P = st.sampled_from([1e-6, 0.31, 0.517, 0.913, 0.999, 1.0])
MIN_P = st.sampled_from([0.0, 0.05, 0.3, 1.0])


@pytest.fixture(autouse=True, scope="module")
def _small_tiles() -> Iterator[None]:
    """Use small tiles and parts, so that a small vocabulary has many."""
    module = sys.modules[sample.__module__]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("TILE", TILE), ("GROUP", GROUP), ("PART", PART)):
            patch.setattr(module, name, value)
        yield


@dataclass(frozen=True)
class Text:
    """Text of the rows: committed tokens up to the anchor, and a draft."""

    tokens: list[int]
    draft: list[int]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, draft and start; memory after the anchor contains tokens that must not be penalised."""
        tokens = torch.tensor(self.tokens + [0] * 20, dtype=torch.int32)
        return tokens, torch.tensor(self.draft, dtype=torch.int32), torch.tensor([len(self.tokens) - 1]).int()

    def before(self, row: int) -> list[int]:
        return self.tokens + self.draft[1 : row + 1]


def text(length: int = 4, rows: int = 16) -> Text:
    tokens = [(7 * i) % 5 for i in range(length)]
    return Text(tokens, [tokens[-1], *((3 * i) % 5 for i in range(1, rows))])


def packed(params: SamplingParams) -> tuple[Tensor, Tensor]:
    floats = (params.temperature, params.top_p, params.min_p, params.repetition_penalty)
    seed = params.seed or 0
    halves = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32).tolist()
    return torch.tensor(floats), torch.tensor([params.top_k, *halves, params.penalty_window], dtype=torch.int32)


def run(op: Op, logits: Tensor, params: SamplingParams, after: Text | None = None, launches: int = 1) -> list[int]:
    """Return the choices of all rows; assert that repeated launches agree."""
    after = after or text(rows=len(logits))
    tokens, draft, start = after.tensors()
    scratch = SampleScratch.empty(logits.shape[1], CPU, len(logits))
    first = None
    for _ in range(launches):
        choice = torch.full((len(logits),), -9, dtype=torch.int32)
        op(logits.clone(), *packed(params), tokens, draft, start, choice, scratch)
        assert first is None or torch.equal(choice, first)
        assert not scratch.seen.any()
        first = choice
    assert first is not None
    return first.tolist()


def quarters(generator: int, rows: int, vocab: int) -> Tensor:
    """Return logits with many ties."""
    return torch.randint(-20, 21, (rows, vocab), generator=torch.Generator().manual_seed(generator)) / 4


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=24),
    params=st.builds(SamplingParams, TEMPERATURES, st.integers(0, 26), TOP_P, MIN_P),
)
def test_the_reference_keeps_the_tokens_that_the_host_keeps(logits: list[float], params: SamplingParams) -> None:
    expected, _ = Sampler(params).distribution(np.array(logits))
    falling, order = torch.tensor([logits], dtype=torch.float64).sort(dim=1, descending=True, stable=True)
    keeps = survivors(falling, params.temperature, params.top_k, params.top_p, params.min_p)
    assert sorted(order[keeps].tolist()) == sorted(expected.tolist())


PARAMS = st.builds(
    SamplingParams, TEMPERATURES, st.integers(0, 40), TOP_P, MIN_P, st.sampled_from([1.0, 0.5, 1.3]), st.just(3),
    st.integers(0, 2**63 - 1),
)  # fmt: skip


@pytest.mark.nightly
@settings(max_examples=30, deadline=None)
@given(params=PARAMS, vocab=st.integers(1, 150))
@pytest.mark.timeout(600)
def test_the_kernel_draws_what_the_reference_draws(params: SamplingParams, vocab: int) -> None:
    logits, after = quarters(params.seed or 0, 1, vocab), Text([min(4, vocab - 1)], [0])
    assert run(sample, logits, params, after, launches=2) == run(sample_reference, logits, params, after)


def test_the_kernel_draws_among_ties_what_the_reference_draws() -> None:
    logits, after = quarters(3, 1, 130), Text([4], [0])
    for params in (
        SamplingParams(3.0, 40, 0.517, 0.05, 1.3, 3, 2**62 + 5),
        SamplingParams(1.0, 0, 0.913, 0.0, 0.5, 3, 1),
    ):
        assert run(sample, logits, params, after) == run(sample_reference, logits, params, after)


def test_a_large_vocabulary_in_full_tiles() -> None:
    params = replace(HOT, top_k=50, top_p=0.95, min_p=0.02)
    logits = 3 * torch.randn(2, 20000, generator=torch.Generator().manual_seed(1))
    with pytest.MonkeyPatch.context() as patch:
        module = sys.modules[sample.__module__]
        for name, value in (("TILE", 4096), ("GROUP", 32), ("PART", 128)):
            patch.setattr(module, name, value)
        assert run(sample, logits, params, launches=2) == run(sample_reference, logits, params)


@pytest.mark.parametrize("op", [penalise, penalise_reference])
@pytest.mark.parametrize(("penalty", "window"), [(1.3, 3), (0.5, 1000)])
def test_each_row_is_penalised_for_its_own_text_once(op: Op, penalty: float, window: int) -> None:
    logits, after = quarters(3, 6, 12), text(length=5, rows=6)
    params = SamplingParams(1.0, repetition_penalty=penalty, penalty_window=window)
    expected = logits.double().numpy()
    for row in range(6):
        Sampler(params)._apply_repetition_penalty(expected[row], after.before(row))
    seen = torch.zeros(6, 1, dtype=torch.int32)
    op(logits, *packed(params), *after.tensors(), seen)
    torch.testing.assert_close(logits, torch.from_numpy(expected).float(), rtol=1e-6, atol=0)
    assert not seen.any()


def test_a_long_window_is_read_in_chunks_and_ids_beyond_the_vocabulary_are_ignored() -> None:
    tokens = [(i * 7919) % 90 for i in range(2500)]
    after = Text(tokens, [tokens[-1], 95, 1 << 30, -1])
    logits = quarters(4, 4, 70)
    expected, seen = logits.clone(), torch.zeros(4, 3, dtype=torch.int32)
    arguments = (*packed(replace(HOT, repetition_penalty=1.2, penalty_window=2400)), *after.tensors(), seen)
    penalise(logits, *arguments)
    penalise_reference(expected, *arguments)
    assert torch.equal(logits, expected)
    assert not seen.any()


@OPS
def test_zero_temperature_takes_the_largest_penalised_logit(op: Op) -> None:
    logits = torch.full((3, 100), -2.0)
    logits[0, [70, 99, 3]] = torch.tensor([4.0, 4.0, 1.0])
    logits[1, 0], logits[1, 90] = 5.0, 4.0  # token 0 is in the text
    logits[2] = 0.0
    logits[2, ::2] = -0.0
    assert run(op, logits, SamplingParams(), launches=2) == [70, 0, 0]
    assert run(op, logits, SamplingParams(repetition_penalty=2.0)) == [70, 90, 0]


@OPS
def test_logits_keep_their_bits_without_a_penalty(op: Op) -> None:
    logits, choice = quarters(5, 16, 100), torch.zeros(16, dtype=torch.int32)
    logits[3, 7], logits[4, 8] = -0.0, torch.nan
    before, after = logits.clone(), text()
    floats, integers_ = torch.tensor(UNMODIFIED_LOGITS[0]), torch.tensor(UNMODIFIED_LOGITS[1], dtype=torch.int32)
    op(logits, floats, integers_, *after.tensors(), choice, SampleScratch.empty(100, logits.device))
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))
    assert choice.tolist() == [-1 if row == 4 else int(before[row].argmax()) for row in range(16)]


@OPS
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # infinity - infinity, never used
def test_invalid_rows_get_no_token_and_do_not_affect_others(op: Op) -> None:
    params = replace(HOT, top_k=9, repetition_penalty=1.1)
    logits = quarters(7, 3, 70)
    logits[0, 60], logits[1], logits[2, 5] = torch.nan, -torch.inf, -torch.inf
    found = run(op, logits, params)
    assert found[:2] == [-1, -1]
    assert found[2:] == run(sample_reference, logits, params)[2:] != [-1]
    if op is sample_reference:
        assert run(op, torch.tensor([[0.0, torch.inf]]), params) == [-1]


@pytest.mark.parametrize("op", [pytest.param(sample, marks=pytest.mark.nightly), sample_reference])
def test_drafted_row_samples_what_single_token_decoding_samples(op: Op) -> None:
    params = replace(HOT, top_k=9, top_p=0.9, repetition_penalty=1.3, penalty_window=3)
    logits, drafted = quarters(8, 3, 70), text(rows=3)
    rows = run(op, logits, params, drafted)
    for row in range(3):
        plain = drafted.before(row)
        assert run(op, logits[row : row + 1], params, Text(plain, plain[-1:])) == rows[row : row + 1]


def test_draws_follow_the_distribution() -> None:
    rows, vocab = 30000, 40
    logits = quarters(11, 1, vocab) / 2
    params = replace(HOT, temperature=0.8, top_k=30, top_p=0.95, min_p=0.01)
    drawn = np.bincount(run(sample_reference, logits.repeat(rows, 1), params, text(rows=rows)), minlength=vocab)
    tokens, probabilities = Sampler(params).distribution(logits[0].double().numpy())
    assert drawn.sum() == drawn[tokens].sum()
    assert chisquare(drawn[tokens], probabilities * rows).pvalue > 0.01


def test_noise_is_gumbel_and_new_for_every_seed_position_and_token() -> None:
    seed = 2**63 - 1
    _, ints = packed(replace(HOT, seed=seed))
    tokens = torch.arange(500).repeat(400, 1)
    noise = noise_reference(ints, torch.arange(400), tokens)
    assert kstest(noise.flatten().numpy(), gumbel_r.cdf).pvalue > 0.01
    assert np.abs(np.corrcoef(noise.numpy()) - np.eye(400)).max() < 0.25  # by position
    assert np.abs(np.corrcoef(noise.t().numpy()) - np.eye(500)).max() < 0.28  # by token
    _, others = packed(replace(HOT, seed=seed ^ (1 << 40)))
    assert abs(np.corrcoef(noise.flatten(), noise_reference(others, torch.arange(400), tokens).flatten())[0, 1]) < 0.02
