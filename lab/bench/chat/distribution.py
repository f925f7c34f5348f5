"""χ² test of whether drafting at a temperature samples from the target's own distribution, with the real pair.

Two tokens are sampled repeatedly after each prompt, with a forced draft. Expected counts come from the target's
logits without drafts; outcomes with an expected count below five are counted together.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.engine.draft import EMPTY_DRAFT
from localdflash.engine.host_pair import HostPair
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab.bench.chat.chat_modes import Hosts, replaced_controller
from localdflash.lab.bench.decoding_modes import FullDraftController

MIN_EXPECTED_COUNT = 5.0  # an outcome that is expected less often has no class of its own in the test
Outcomes = dict[tuple[int, ...], float]  # two tokens, or one that ends the answer -> expected count


def check(
    hosts: Hosts,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    draws: int,
    on_progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Sample `draws` times after each prompt (token ids); return the χ² test's result as JSON values.

    `drafted_tokens_drawn` counts the samples that begin with the first drafted token.
    """
    statistic, freedom, accepted = 0.0, 0, 0
    model = next((drafter.name for drafter in hosts.drafting.drafters if drafter.is_model), "")
    # Lookup is excluded: its drafts are hardly ever right at the start of an answer.
    with replaced_controller(hosts.drafting, FullDraftController(model)) as drafting:
        for number, ids in enumerate(prompts):
            expected = _expected(hosts.plain, ids, temperature, draws)
            sampler = Sampler(SamplingParams(temperature, seed=number))
            seen: Counter[tuple[int, ...]] = Counter()
            for _ in range(draws):
                sampled, is_accepted = _sample_two(drafting, ids, sampler)
                seen[sampled] += 1
                accepted += is_accepted
            prompt_statistic, prompt_freedom = chi_squared(seen, expected, draws)
            statistic, freedom = statistic + prompt_statistic, freedom + prompt_freedom
            on_progress()
    for pair in hosts:
        pair.forget()
    return {
        "temperature": temperature,
        "prompts": len(prompts),
        "draws": draws * len(prompts),
        "drafted_tokens_drawn": accepted,
        "chi_squared": round(statistic, 2),
        "degrees_of_freedom": freedom,
        "p_value": round(p_value(statistic, freedom), 4),
    }


def chi_squared(seen: Counter[tuple[int, ...]], expected: Outcomes, draws: int) -> tuple[float, int]:
    """Return the χ² statistic and its degrees of freedom; all outcomes outside `expected` form one class."""
    counts = [(seen[outcome], expected_count) for outcome, expected_count in expected.items()]
    remaining = draws - sum(expected_count for _, expected_count in counts)
    if remaining > MIN_EXPECTED_COUNT or not counts:
        counts.append((draws - sum(count for count, _ in counts), remaining))
    return sum((count - expected_count) ** 2 / expected_count for count, expected_count in counts), len(counts) - 1


def p_value(statistic: float, freedom: int) -> float:
    """Return the probability of a statistic at least this large; 1 without degrees of freedom."""
    if freedom < 1:
        return 1.0
    a, x = (0.5 if freedom % 2 else 1.0), statistic / 2
    chance = math.erfc(math.sqrt(x)) if freedom % 2 else math.exp(-x)
    while a < freedom / 2:  # Q(a + 1, x) = Q(a, x) + x**a exp(-x) / gamma(a + 1)
        chance += math.exp(a * math.log(x) - x - math.lgamma(a + 1)) if x else 0.0
        a += 1
    return chance


def _sample_two(pair: HostPair, ids: Sequence[int], sampler: Sampler) -> tuple[tuple[int, ...], bool]:
    """Sample two tokens (or one that ends the answer); return them, and whether the first was a drafted token."""
    pair.prefill(ids)
    step = pair.step(sampler, 2)
    tokens = list(step.tokens)
    if len(tokens) < 2:
        tokens += pair.step(sampler, 1).tokens
    return tuple(tokens), step.accepted > 0


def _expected(plain: HostPair, ids: Sequence[int], temperature: float, draws: int) -> Outcomes:
    """Return the outcomes that are expected often enough, with their expected counts."""
    first = _distribution(plain, ids, temperature)
    expected: Outcomes = {}
    for token in np.flatnonzero(first * draws >= MIN_EXPECTED_COUNT).tolist():
        second = _distribution(plain, [*ids, token], temperature)
        counts = first[token] * second * draws
        expected |= {
            (token, after): float(counts[after]) for after in np.flatnonzero(counts >= MIN_EXPECTED_COUNT).tolist()
        }
    return expected


def _distribution(pair: HostPair, ids: Sequence[int], temperature: float) -> NDArray[np.float64]:
    pair.prefill(ids)
    scores = pair.target.verify(ids[-1], EMPTY_DRAFT).logits[0].astype(np.float64) / temperature
    pair.target.keep(0)
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())
