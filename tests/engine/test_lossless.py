"""Losslessness: drafts change neither greedy answers, nor sampled ones of a seed, nor the distribution."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from localdflash.engine import host_pair
from localdflash.engine.draft import Draft
from localdflash.engine.host_pair import HostPair
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams

Table = NDArray[np.float32]
Make = Callable[..., Any]

V = 6
GREEDY = SamplingParams()
KINDS = ("perfect", "wrong", "random", "long", "empty", "sometimes")


def table_of(seed: int, size: int = V, sharpness: float = 2.0) -> Table:
    """Return logits of the next token after every two tokens."""
    return np.random.default_rng(seed).normal(0, sharpness, (size,) * 3).astype(np.float32)


def greedy_answer(
    table: Table, prompt: list[int], count: int, ends: frozenset[int] = frozenset(), params: SamplingParams = GREEDY
) -> list[int]:
    """Return the greedy answer of a table model, by OpenAI's formula of bias and penalties, without an engine."""
    ids, message = list(prompt), Counter[int]()
    while len(ids) < len(prompt) + count and not (message and ids[-1] in ends):
        scores = table[ids[-2] if len(ids) > 1 else 0, ids[-1]].astype(np.float64)
        for token in range(len(table)):
            scores[token] += dict(params.logit_bias).get(token, 0.0)
            scores[token] -= params.frequency_penalty * message[token] + params.presence_penalty * (message[token] > 0)
        ids.append(int(scores.argmax()))
        message[ids[-1]] += 1
    return ids[len(prompt) :]


def inventor(kind: str, table: Table, seed: int) -> Callable[[list[int], int], Any]:
    """Return a function (sequence, limit) -> tokens and confidence of a draft of this kind."""
    rng = np.random.default_rng(seed)

    def invent(ids: list[int], limit: int) -> Any:
        if kind == "empty" or (kind == "sometimes" and rng.random() < 0.5):
            return (), ()
        count = 70 if kind == "long" else limit
        tokens = greedy_answer(table, ids, count) if kind != "random" else rng.integers(0, len(table), count).tolist()
        if kind == "wrong":
            tokens = [(token + 1) % len(table) for token in tokens]
        return tokens, rng.random(count).tolist()

    return invent


@pytest.fixture(scope="session")
def drafting_pair(fake_target: Make, fake_drafter: Make, eager: Make) -> Make:
    """Return a function (table, kinds, seed, **target's) -> pair that verifies all drafts of these kinds."""

    def make(table: Table, kinds: Sequence[str], seed: int = 0, **settings: Any) -> HostPair:
        names = [f"{kind}{i}" for i, kind in enumerate(kinds)]
        drafters = [
            fake_drafter(name, inventor(kind, table, seed), is_model=i % 2 == 0)
            for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
        ]
        return HostPair(fake_target(table, **settings), drafters, eager(*names))

    return make


def take(pair: HostPair, sampler: Sampler, count: int, limits: Sequence[int] = (99,)) -> list[int]:
    """Return at most `count` tokens, up to an end token; steps use the limits in sequence."""
    tokens: list[int] = []
    for limit in itertools.cycle(limits):
        if len(tokens) >= count or (tokens and tokens[-1] in pair.ends):
            return tokens
        step = pair.step(sampler, min(limit, count - len(tokens)))
        assert 1 <= len(step.tokens) <= min(limit, count - len(tokens))
        assert step.accepted == len(step.tokens) - 1 <= step.drafted
        tokens += step.tokens
        check_agreement(pair)
    raise AssertionError


def check_agreement(pair: HostPair) -> None:
    """Assert that target and drafters cached the same tokens: all but the anchor."""
    assert list(pair.cached) == pair.ids[:-1]
    target: Any = pair.target
    assert target.cached == pair.ids[:-1]
    for drafter in pair.drafters:
        fake: Any = drafter
        assert fake.observed == pair.ids[:-1]


PROMPTS = st.lists(st.integers(0, V - 1), min_size=1, max_size=40)
KIND_LISTS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)
MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


PENALTIES = st.sampled_from([0.0, 0.3, 1.1, 2.0, -0.7, -2.0])
BIASES = st.dictionaries(st.integers(0, V - 1), st.sampled_from([-100.0, -1.5, 0.4, 3.0, 100.0]), max_size=3)
PARAMS = [
    SamplingParams(1.0, seed=1),
    SamplingParams(0.7, top_p=0.9, seed=2),
    SamplingParams(1.4, top_k=3, min_p=0.05, seed=3),
    SamplingParams(0.8, repetition_penalty=1.4, penalty_window=5, seed=4),
    SamplingParams(0.0, repetition_penalty=2.0, penalty_window=8),
]


@st.composite
def shifting(draw: st.DrawFn, temperature: float, repetition: Sequence[float] = (1.0, 1.5)) -> SamplingParams:
    return SamplingParams(
        temperature,
        repetition_penalty=draw(st.sampled_from(repetition)),
        penalty_window=7,
        seed=draw(st.integers(0, 9)),
        presence_penalty=draw(PENALTIES),
        frequency_penalty=draw(PENALTIES),
        logit_bias=tuple(draw(BIASES).items()),
    )


@MANY
@given(
    seed=st.integers(0, 50),
    prompt=PROMPTS,
    kinds=KIND_LISTS,
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    ends=st.frozensets(st.integers(0, V - 1), max_size=2),
    max_width=st.integers(1, 12),
    params=st.one_of(st.just(GREEDY), shifting(0.0, [1.0])),
)
def test_greedy_answers_are_the_models_own_whatever_is_drafted(
    drafting_pair: Make,
    seed: int,
    prompt: list[int],
    kinds: list[str],
    limits: list[int],
    ends: frozenset[int],
    max_width: int,
    params: SamplingParams,
) -> None:
    table = table_of(seed)
    pair = drafting_pair(table, kinds, seed, max_width=max_width)
    pair.ends = ends
    pair.prefill(prompt)
    assert take(pair, Sampler(params), 30, limits) == greedy_answer(table, prompt, 30, ends, params)


@MANY
@given(
    seed=st.integers(0, 50),
    prompt=PROMPTS,
    kinds=KIND_LISTS,
    params=st.one_of(st.sampled_from(PARAMS), shifting(0.0), shifting(0.8), shifting(1.5)),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_a_seed_gives_the_same_text_with_and_without_drafts(
    drafting_pair: Make,
    fake_target: Make,
    seed: int,
    prompt: list[int],
    kinds: list[str],
    params: SamplingParams,
    limits: list[int],
) -> None:
    table = table_of(seed, sharpness=1.0)
    plain = HostPair(fake_target(table))
    plain.prefill(prompt)
    pair = drafting_pair(table, kinds, seed)
    pair.prefill(prompt)
    assert take(pair, Sampler(params), 40, limits) == take(plain, Sampler(params), 40)


@MANY
@given(seed=st.integers(0, 50), kinds=KIND_LISTS, data=st.data())
def test_prefills_and_saved_states_in_any_order(
    drafting_pair: Make, seed: int, kinds: list[str], data: st.DataObject
) -> None:
    table = table_of(seed)
    pair = drafting_pair(table, kinds, seed)
    pair.prefill(data.draw(PROMPTS))
    saved = pair.save()
    for _ in range(data.draw(st.integers(1, 8))):
        ids = list(pair.ids)
        match data.draw(st.sampled_from(("step", "regenerate", "save", "load", "prefill", "continue"))):
            case "step" if pair.room:
                step = pair.step(Sampler(SamplingParams()), data.draw(st.integers(1, 20)))
                assert list(step.tokens) == greedy_answer(table, ids, len(step.tokens))
            case "regenerate":
                length = data.draw(st.integers(1, min(len(ids), pair.target.context - 1)))
                pair.prefill(ids[:length])
                assert pair.ids == ids[:length]
            case "save":
                saved = pair.save()
                assert list(saved.ids) == ids[:-1]
            case "load":
                pair.load(saved)
                pair.prefill([*saved.ids, 1, 2][: len(saved.ids) + data.draw(st.integers(1, 2))])
            case "prefill":
                pair.prefill(data.draw(PROMPTS))
            case "continue" if pair.room > 3:
                assert pair.prefill([*ids, 3, 1]) == 2  # the old anchor and the token after it
        check_agreement(pair)


# The distribution over random seeds: two tokens after a prompt have V * V outcomes.
SMALL = 4
PROMPT = [2, 1]
DRAWS = 2000


def next_tokens(scores: NDArray[np.float32], params: SamplingParams) -> dict[int, float]:
    """Return token -> probability with temperature and top-p."""
    weights = np.exp(scores.astype(np.float64) / params.temperature)
    probabilities = weights / weights.sum()
    nucleus: dict[int, float] = {}
    for token in np.argsort(-probabilities).tolist():
        if sum(nucleus.values()) < params.top_p:
            nucleus[token] = float(probabilities[token])
    return {token: p / sum(nucleus.values()) for token, p in nucleus.items()}


def exact_outcomes(table: Table, params: SamplingParams) -> dict[tuple[int, int], float]:
    """Return the probabilities of the first two tokens after PROMPT, by enumeration."""
    return {
        (first, second): p * q
        for first, p in next_tokens(table[PROMPT[0], PROMPT[1]], params).items()
        for second, q in next_tokens(table[PROMPT[1], first], params).items()
    }


def p_value(pair: HostPair, params: SamplingParams, expected: dict[tuple[int, int], float]) -> float:
    """Return the p-value of a χ² test of DRAWS sampled pairs of tokens; rare outcomes are pooled."""
    sampler = Sampler(params)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(DRAWS):
        pair.prefill(PROMPT)
        counts[tuple(take(pair, sampler, 2))] += 1
    assert counts.keys() <= expected.keys()
    common = [outcome for outcome, p in expected.items() if p * DRAWS >= 5]
    seen = [counts[outcome] for outcome in common]
    reference = [expected[outcome] * DRAWS for outcome in common]
    if DRAWS - sum(reference) > 1e-6:
        seen, reference = [*seen, DRAWS - sum(seen)], [*reference, DRAWS - sum(reference)]
    return float(chisquare(seen, reference).pvalue)


STATISTICAL = [SamplingParams(1.0, seed=11), SamplingParams(0.7, top_p=0.9, seed=11)]


@pytest.mark.parametrize("params", STATISTICAL)
@pytest.mark.parametrize("kind", ["perfect", "random"])
def test_sampling_with_drafts_follows_the_exact_distribution(
    drafting_pair: Make, params: SamplingParams, kind: str
) -> None:
    table = table_of(0, SMALL, 1.0)
    assert p_value(drafting_pair(table, [kind]), params, exact_outcomes(table, params)) > 0.01


def lossy_accept(
    draft: Draft, logits: Table, sampler: Sampler, ids: Sequence[int], limit: int, ends: frozenset[int]
) -> list[int]:
    """Accept drafted tokens that are likely enough, as several engines do, instead of the target's sample."""
    committed: list[int] = []
    for node, token in enumerate(draft.tokens[: limit - 1]):
        scores = logits[node].astype(np.float64)
        if np.exp(scores - scores.max())[token] < 0.9 or sampler._random.random() > 0.25:
            break
        committed.append(token)
    committed.append(sampler.sample(logits[len(committed)], []))
    return committed


@pytest.mark.parametrize("params", STATISTICAL)
def test_statistical_test_detects_lossy_acceptance(
    drafting_pair: Make, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_pair, "accept", lossy_accept)
    table = table_of(0, SMALL, 1.0)
    assert p_value(drafting_pair(table, ["perfect"]), params, exact_outcomes(table, params)) < 1e-4
