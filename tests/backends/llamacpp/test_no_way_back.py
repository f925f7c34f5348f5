"""Qwen3-Next, of whose states llama.cpp keeps no copies: without drafting its text is Hugging Face's, and prompts are
reused as far as states are kept.
"""

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.llama_kv_cache import max_revertible_width
from localdflash.backends.llamacpp.load_llamacpp import load
from localdflash.engine.prefix import PrefixCache
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running
from tests.support.converted_models import Case, ids_of
from tests.support.requests import random_requests, run
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
    """Hugging Face's greedy text."""
    ids = list(ids)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(case.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[-count:]


def test_nothing_is_drafted_and_one_line_says_so(running: Running, case: Case, files: LocalPair) -> None:
    assert max_revertible_width(llama_library.load_model(files.target)) == 1
    assert "recurrent layers" in running.rows
    ids = ids_of(40) * 2  # prompt lookup would find a draft
    found, request = run(running.pair, ids, 30, documents=[ids])
    assert found == likeliest(case, ids, 30)
    assert request.stats.drafted == 0


def test_random_requests(running: Running, case: Case) -> None:
    prefixes, computed, prompts = PrefixCache(1 << 30), 0, 0
    for ids, count, _ in random_requests(running.pair, 6, seed=0):  # type: ignore[arg-type]
        found, request = run(running.pair, ids, count := count // 2 + 1, prefixes)
        assert found == likeliest(case, ids, count)
        computed, prompts = computed + request.computed_tokens, prompts + len(ids)
    assert computed < 0.9 * prompts, "some prompts continue from a kept state"
