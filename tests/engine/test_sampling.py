"""Sampling against plain float64 arithmetic: the order of the filters, ties, limits, seeds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.engine.accept import accept, accept_greedy
from localdflash.engine.draft import Draft
from localdflash.engine.sampling import LogitShift, Sampler
from localdflash.engine.sampling_params import SamplingParams

LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=24)


def expected_distribution(logits: list[float], ids: list[int], params: SamplingParams) -> dict[int, float]:
    """Return token -> probability: penalty, temperature, top-k, top-p, min-p, one after the other."""
    scores = list(logits)
    newest = ids[-params.penalty_window :] if params.penalty_window else []
    for token in set(newest):
        factor = params.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    order = order[: params.top_k or len(order)]
    weights = {token: math.exp((scores[token] - scores[order[0]]) / params.temperature) for token in order}
    total = math.fsum(weights.values())
    survivors, mass = [], 0.0
    for token in order:
        if mass >= params.top_p:
            break
        survivors.append(token)
        mass += weights[token] / total
    survivors = [token for token in survivors if weights[token] >= params.min_p * weights[order[0]]]
    total = math.fsum(weights[token] for token in survivors)
    return {token: weights[token] / total for token in survivors}


def actual_distribution(logits: list[float], ids: list[int], params: SamplingParams) -> dict[int, float]:
    sampler = Sampler(params)
    scores = np.array(logits, np.float64)
    if params.repetition_penalty != 1.0 and params.penalty_window and ids:
        sampler._apply_repetition_penalty(scores, ids)
    tokens, probabilities = sampler.distribution(scores)
    return dict(zip(tokens.tolist(), probabilities.tolist(), strict=True))


@settings(max_examples=120, deadline=None)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, 26),
    top_p=st.sampled_from([1e-6, 0.31, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    penalty=st.sampled_from([1.0, 0.5, 1.3, 4.0]),
    window=st.integers(0, 6),
    data=st.data(),
)
def test_distribution_matches_float64_arithmetic(
    logits: list[float],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    window: int,
    data: st.DataObject,
) -> None:
    params = SamplingParams(temperature, top_k, top_p, min_p, penalty, window)
    ids = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=12))
    expected = expected_distribution(logits, ids, params)
    actual = actual_distribution(logits, ids, params)
    # Rounding may decide either way about a token at the bound.
    for token in expected.keys() | actual.keys():
        assert actual.get(token, 0.0) == pytest.approx(expected.get(token, 0.0), abs=1e-9), (expected, actual)


def test_ties_keep_the_lower_ids() -> None:
    assert actual_distribution([1.0, 5.0, 5.0, 5.0], [], SamplingParams(1.0, top_k=2)).keys() == {1, 2}
    assert Sampler(SamplingParams()).sample(np.array([1, 7, 7], np.float32), []) == 1


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(1.0), SamplingParams(repetition_penalty=1.5)])
@pytest.mark.parametrize("bad", [[0.0, math.nan, 1.0], [math.inf, 0.0, 1.0], [-math.inf] * 3, [math.nan] * 3])
def test_invalid_logits_give_one_line_error(params: SamplingParams, bad: list[float]) -> None:
    with pytest.raises(LocaldflashError, match="not numbers") as caught:
        Sampler(params).sample(np.array(bad, np.float32), [0])
    assert "\n" not in str(caught.value)


FIELDS = {
    "temperature": (0.0, 10.0),
    "top_k": (0, 2**31 - 1),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.1, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "penalty_window": (0, 2**31 - 1),
    "seed": (0, 2**63 - 1),
}
WHOLE = {"top_k", "penalty_window", "seed"}


NEVER = [math.nan, math.inf, -math.inf, -3, True, False, "1", [1], 2**64, 1j]


@pytest.mark.parametrize("field", FIELDS)
def test_each_setting_has_its_range_and_is_refused_by_name_outside_of_it(field: str) -> None:
    low, high = FIELDS[field]
    for right in (low, high):
        settings_of: dict[str, Any] = {field: right}
        assert getattr(SamplingParams(**settings_of), field) == right
    for wrong in (*NEVER, low - 1, high + 1, *([1.5] if field in WHOLE else []), *([] if field == "seed" else [None])):
        settings_of = {field: wrong}
        with pytest.raises(UsageError, match=f"^{field}: ") as caught:
            SamplingParams(**settings_of)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "entry", [*((1, bias) for bias in (101.0, -101, "1", None)), (-1, 1.0), ("1", 1.0), (2**40, 1.0)]
)
def test_a_bias_out_of_range_is_refused(entry: Any) -> None:
    with pytest.raises(UsageError, match=r"^logit_bias"):
        SamplingParams(logit_bias=(entry,))


def test_presence_and_frequency_penalties() -> None:
    shift = LogitShift(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25))
    for token in (2, 2, 4):
        shift.count(token)
    scores = np.zeros(6)
    shift.subtract_penalties(scores)
    assert scores.tolist() == [0.0, 0.0, -1.0, 0.0, -0.75, 0.0]


def test_logit_bias_forces_and_forbids_tokens() -> None:
    logits = np.array([0.0, 9.0, 1.0], np.float32)
    assert Sampler(SamplingParams(logit_bias=((1, -100.0),))).sample(logits, []) == 2
    for temperature in (0.0, 1.0):
        assert Sampler(SamplingParams(temperature, logit_bias=((0, 100.0),))).sample(logits, []) == 0


class Among:
    """Constraint that always allows the same tokens, of four, and records the sampled ones."""

    def __init__(self, *allowed: int, renormalizes: bool = False) -> None:
        self.allowed, self.renormalizes, self.sampled = np.isin(np.arange(4), allowed), renormalizes, list[int]()

    def mask(self) -> NDArray[np.bool_]:
        return self.allowed

    def advance(self, token: int) -> None:
        self.sampled.append(token)

    def count_allowed(self, tokens: Sequence[int]) -> int:
        raise NotImplementedError

    forced_tokens: Any = count_allowed


FOUR = np.array([1.0, 9.0, 2.0, 0.0], np.float32)


@pytest.mark.parametrize(("params", "possible"), [(SamplingParams(), {2}), (SamplingParams(1.0, seed=0), {0, 2})])
def test_only_tokens_that_the_constraint_allows_are_sampled(params: SamplingParams, possible: set[int]) -> None:
    constraint = Among(0, 2)
    sampler = Sampler(params, constraint)
    tokens = [sampler.sample(FOUR, []) for _ in range(100)]
    assert (set(tokens), constraint.sampled) == (possible, tokens)


@pytest.mark.parametrize("count", [0, 2, 4])
@pytest.mark.parametrize("renormalizes", [None, False, True])
def test_recorded_probabilities_are_the_models_own(count: int, renormalizes: bool | None) -> None:
    """Probabilities are those before filters, penalties and bias; a constraint may renormalize them."""
    params = SamplingParams(1.0, top_k=1, logit_bias=((3, 100.0),), repetition_penalty=2.0)
    sampler = Sampler(params, None if renormalizes is None else Among(0, 2, 3, renormalizes=renormalizes), count)
    expected = log_softmax(np.where([True, not renormalizes, True, True], FOUR.astype(np.float64), -np.inf))
    assert sampler.sample(FOUR, [3]) == 3
    (recorded,) = sampler.sampled_tokens
    assert recorded.token == 3
    assert recorded.logprob == pytest.approx(expected[3], abs=1e-6)
    likeliest = sorted(range(4), key=lambda token: -expected[token])[:count]
    assert [token for token, _ in recorded.top_logprobs] == likeliest
    assert [logprob for _, logprob in recorded.top_logprobs] == pytest.approx(expected[likeliest])


@pytest.mark.parametrize(
    ("params", "options", "needs", "only_argmax"),
    [
        ({}, {}, False, True),
        ({"temperature": 1.0}, {}, False, False),
        ({"repetition_penalty": 1.1}, {}, False, False),
        ({}, {"constraint": Among(1)}, True, False),
        ({}, {"top_logprobs": 0}, True, False),
        *(
            (shift, {}, True, False)
            for shift in ({"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"logit_bias": ((1, 1.0),)})
        ),
    ],
)
def test_logits_needed_on_the_host(
    params: dict[str, Any], options: dict[str, Any], needs: bool, only_argmax: bool
) -> None:
    sampler = Sampler(SamplingParams(**params), **options)
    assert (sampler.needs_logits, sampler.needs_only_argmax) == (needs, only_argmax)


V = 10


def chain(*tokens: int) -> Draft:
    return Draft("test", tokens, [0.5] * len(tokens))


@pytest.mark.parametrize(
    ("draft", "choices", "limit", "ends", "committed"),
    [
        ((), (4,), 99, (), [4]),  # no draft: the target's own token
        ((4, 5, 6), (4, 5, 6, 7), 99, (), [4, 5, 6, 7]),  # all accepted, plus the bonus
        ((4, 5, 6), (9, 5, 6, 7), 99, (), [9]),  # rejected at the first token
        ((4, 5, 6), (4, 5, 8, 7), 99, (), [4, 5, 8]),
        *(((4, 5, 6), (4, 5, 6, 7), limit, (), [4, 5, 6, 7][:limit]) for limit in range(1, 6)),
        ((4, 5, 6), (4, 5, 6, 7), 99, (5, 7), [4, 5]),  # nothing follows an end token, even if drafted
        ((4, 5, 6), (4, 5, 6, 7), 99, (7,), [4, 5, 6, 7]),
        ((), (5,), 99, (5,), [5]),
    ],
)
def test_a_draft_is_committed_up_to_the_first_difference_the_limit_or_an_end(
    draft: tuple[int, ...], choices: tuple[int, ...], limit: int, ends: tuple[int, ...], committed: list[int]
) -> None:
    logits = np.eye(V, dtype=np.float32)[list(choices)]
    sampler = Sampler(SamplingParams())
    assert accept(chain(*draft), logits, sampler, [1, 2, 3], limit, frozenset(ends)) == committed
    assert accept_greedy(chain(*draft), choices, limit, frozenset(ends)) == committed


def test_penalty_counts_uncommitted_draft_tokens() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0))
    logits = np.zeros((3, V), np.float32)
    logits[:, 4], logits[:, 5] = 2.0, 1.5
    # Row 0: 4. Row 1: 4 was committed on the way, so 5. Row 2: both seen; 4 again.
    assert accept(chain(4, 5), logits, sampler, [1], 99, frozenset()) == [4, 5, 4]
    assert accept(chain(4, 4), logits, sampler, [1], 99, frozenset()) == [4, 5]
