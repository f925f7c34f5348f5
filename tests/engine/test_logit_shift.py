"""Bias and the penalties of presence and frequency: by OpenAI's formula, and whatever is drafted."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localdflash.base.errors import UsageError
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from tests.engine.test_lossless import KIND_LISTS, PROMPTS, Table, V, drafting_pair, shifting, table_of, take

__all__ = ["drafting_pair"]

Make = Callable[..., Any]
MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def greedy_answer(table: Table, prompt: list[int], count: int, params: SamplingParams) -> list[int]:
    """What a model that is this table answers by the formula, with no engine at all."""
    ids, said = list(prompt), Counter[int]()
    for _ in range(count):
        scores = table[ids[-2] if len(ids) > 1 else 0, ids[-1]].astype(np.float64)
        for token in range(V):
            scores[token] += dict(params.logit_bias).get(token, 0.0)
            scores[token] -= params.frequency_penalty * said[token] + params.presence_penalty * (said[token] > 0)
        ids.append(int(scores.argmax()))
        said[ids[-1]] += 1
    return ids[len(prompt) :]


@MANY
@given(
    seed=st.integers(0, 50),
    prompt=PROMPTS,
    kinds=KIND_LISTS,
    params=shifting(0.0, [1.0]),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_greedy_answers_are_those_of_the_formula_whatever_is_drafted(
    drafting_pair: Make, seed: int, prompt: list[int], kinds: list[str], params: SamplingParams, limits: list[int]
) -> None:
    table = table_of(seed)
    pair = drafting_pair(table, kinds, seed)
    pair.prefill(prompt)
    assert take(pair, Sampler(params), 40, limits) == greedy_answer(table, prompt, 40, params)


def test_a_bias_forces_and_forbids() -> None:
    logits = np.array([0.0, 9.0, 1.0], np.float32)
    assert Sampler(SamplingParams(logit_bias=((1, -100.0),))).sample(logits, []) == 2
    for params in (SamplingParams(logit_bias=((0, 100.0),)), SamplingParams(1.0, logit_bias=((0, 100.0),))):
        assert [Sampler(params).sample(logits, []) for _ in range(50)] == [0] * 50


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {name: value}
            for name in ("presence_penalty", "frequency_penalty")
            for value in (2.1, -2.1, "1", True, None)
        ),
        *({"logit_bias": ((1, value),)} for value in (101.0, -101, "1", None)),
        *({"logit_bias": ((value, 1.0),)} for value in (-1, "1", 1.5, 2**40)),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(wrong))}"):
        SamplingParams(**wrong)
