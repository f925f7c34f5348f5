"""Qwen3-Next, of whose states llama.cpp keeps no copies: decoded plainly, its text is Hugging Face's, and prompts that
were read are reused as far as states are kept.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.llama_kv_cache import most_rows
from localdflash.backends.llamacpp.load_llamacpp import load
from localdflash.engine.generate import Request, generate
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running
from tests.support.converted_models import Case, ids_of
from tests.support.target_models import WITHOUT_WAY_BACK, case_of

pytestmark = pytest.mark.measures_rows  # though there is nothing to measure
OPTIONS = Options(threads=1, context=256, rows="exact", device="cpu")


@pytest.fixture(scope="module", params=WITHOUT_WAY_BACK)
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(request.param)


@pytest.fixture(scope="module")
def files(case: Case, tmp_path_factory: pytest.TempPathFactory) -> LocalPair:
    path = case.write(tmp_path_factory.mktemp("next") / "model.gguf")
    return LocalPair("tiny", path, None, None, None, None)


@pytest.fixture
def running(files: LocalPair) -> Iterator[Running]:
    with closing(load(files, OPTIONS)) as found:
        yield found


def likeliest(case: Case, ids: list[int], count: int) -> list[int]:
    """What Hugging Face's model goes on with."""
    ids = list(ids)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(case.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-count:]


def text_of(running: Running, ids: list[int], count: int, prefixes: PrefixCache | None = None) -> Request:
    """The request; `tokens` are in its documents, for want of another place."""
    request = Request(ids, count, SamplingParams(), documents=[ids])
    tokens = [token for step in generate(running.pair, request, prefixes) for token in step.tokens]
    return replace(request, documents=[tokens])


def test_nothing_is_drafted_and_one_line_says_so(running: Running, case: Case, files: LocalPair) -> None:
    assert most_rows(llama_library.load_model(files.target)) == 1
    assert running.rows.startswith("plain: nothing is drafted, for llama.cpp cannot take back the states")
    ids = ids_of(40) * 2  # a copy would be drafted
    request = text_of(running, ids, 30)
    assert request.documents[0] == likeliest(case, ids, 30)
    assert request.stats.drafted == 0


def test_any_requests_one_after_the_other(running: Running, case: Case) -> None:
    """Documents that are typed on, answers that are cut short, a chat that goes on, sequences that are swapped out."""
    random, documents = np.random.default_rng(0), (ids_of(100, 1), ids_of(100, 2))
    prefixes, computed, asked = PrefixCache(1 << 30), 0, 0
    for _ in range(10):
        ids = documents[random.integers(2)][: random.integers(1, 100)]
        if random.random() < 0.4 and 0 < len(running.pair.ids) < 150:
            ids = [*running.pair.ids, 5]
        count = int(random.integers(1, 12))
        request = text_of(running, ids, count, prefixes)
        assert request.documents[0] == likeliest(case, ids, count)
        computed, asked = computed + request.computed_tokens, asked + len(ids)
    assert computed < 0.9 * asked, "some go on from a state that is kept"
