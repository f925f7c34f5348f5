"""Logit bias and penalties on every CPU backend: drafting does not change the text."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab.scripts.support.direct_answer import answer_directly
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.api.chat_request import render_chat
from localdflash.text.chat_template import TemplateMessage
from tests.backends.cpu.conftest import needs_library
from tests.support.costs import drafting_pays

QUESTION = TemplateMessage("user", "Write a function that adds two numbers.")


@pytest.fixture(scope="module", params=["llama.cpp", "torch", pytest.param("cpu", marks=needs_library)])
def pairs(request: pytest.FixtureRequest) -> Iterator[tuple[LoadedPair, LoadedPair]]:
    """Yield a pair that drafts, and one that does not."""
    options = Options(threads=1, backend=request.param, context=256, costs=drafting_pays)
    with LoadedPair(options) as drafting, LoadedPair(replace(options, draft=False)) as plain:
        yield drafting, plain


def ids_of(loaded: LoadedPair, params: SamplingParams) -> tuple[list[int], int]:
    """Return the ids of an answer, and the number of drafted ids."""
    prepared = render_chat(loaded, [QUESTION]).prepare(40, params)
    return answer_directly(loaded, prepared).ids, prepared.requests[0].stats.accepted


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(presence_penalty=1.5, repetition_penalty=1.1),
        SamplingParams(0.9, seed=3, frequency_penalty=-0.5, logit_bias=((300, 3.0), (10, -100.0))),
    ],
    ids=["greedy", "sampled"],
)
def test_bias_and_penalties_give_the_same_text_with_drafts(
    pairs: tuple[LoadedPair, LoadedPair], params: SamplingParams
) -> None:
    drafting, plain = pairs
    (ids, accepted), (expected, none) = ids_of(drafting, params), ids_of(plain, params)
    assert ids == expected
    assert accepted > none == 0
    assert ids != ids_of(plain, SamplingParams(params.temperature, seed=params.seed))[0]
