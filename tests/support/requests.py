"""Requests to a pair, one after the other: text typed after documents, answers cut short, chats that continue."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling_params import SamplingParams
from tests.support.converted_models import ids_of

GREEDY, SAMPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=7)


def run(
    pair: Any, ids: list[int], count: int, prefixes: PrefixCache | None = None, **options: Any
) -> tuple[list[int], Request]:
    """Return the tokens of a request's answer, and the request."""
    request = Request(ids, count, **{"params": GREEDY, **options})
    return [token for step in generate(pair, request, prefixes) for token in step.tokens], request


def random_requests(pair: HostPair, rounds: int, seed: int) -> Iterator[tuple[list[int], int, SamplingParams]]:
    """Yield prompts of at most 121 tokens, counts of 1 to 24 tokens, and sampling parameters."""
    random, documents = np.random.default_rng(seed), (ids_of(90, 1), ids_of(90, 2))
    for _ in range(rounds):
        prompt = [*documents[random.integers(2)][: random.integers(1, 90)], *ids_of(int(random.integers(3)), 7)]
        if random.random() < 0.3 and 0 < len(pair.ids) <= 120:
            prompt = [*pair.ids, 5]
        params = SAMPLED if random.random() < 0.3 else GREEDY
        yield prompt, int(random.integers(1, 24)) if random.random() < 0.4 else 24, params
