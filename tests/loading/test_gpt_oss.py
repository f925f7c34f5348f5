"""A gpt-oss with a drafter as published ones are (biases, YaRN), loaded as a pair: the text is plain decoding's."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest

from localdflash.backend.names import Runner
from localdflash.backend.options import Options
from localdflash.backend.running import Running
from localdflash.engine.controller import Controller
from localdflash.engine.generate import Request, generate
from localdflash.engine.pair import Drafter, Target
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.backends import load_on
from localdflash.pairs.pair import LocalPair
from tests.support import gpt_oss_models
from tests.support.converted_models import ids_of
from tests.support.guessing import Eager
from tests.support.random_drafters import YARN, config_of, random_weights, write_zlab

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, seed=3)


def eager(_target: Target, drafters: Sequence[Drafter]) -> Controller:
    """Every draft is verified whole: those of a drafter with random weights are seldom right."""
    return Eager({1: 1.0, 2: 1.0}, {drafter.name: 0.0 for drafter in drafters})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> LocalPair:
    folder = tmp_path_factory.mktemp("gpt-oss")
    case = gpt_oss_models.case_of("Q8_0", "MXFP4", llama_cpp=True)
    target = case.write(folder / "target.gguf", "Q8_0", "MXFP4", tokens=gpt_oss_models.VOCABULARY)
    config = config_of("full", gpt_oss_models.VOCABULARY, taps=(0, 1, 2))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    rope = YARN | {"rope_type": "yarn", "truncate": False}
    drafter = write_zlab(folder, config, random_weights(config), rope_scaling=rope)
    return LocalPair("tiny", target, None, drafter, None, None)


def text_of(running: Running, ids: list[int], params: SamplingParams, **how: object) -> tuple[list[int], Request]:
    request = Request(ids, 60, params, **how)  # type: ignore[arg-type]
    return [token for step in generate(running.pair, request, PrefixCache(1 << 30)) for token in step.tokens], request


@pytest.mark.usefixtures("cpu_engine")
@pytest.mark.parametrize("backend", ["cpu", "llama.cpp"])
def test_a_pair_of_gpt_oss_writes_the_same_with_its_drafter(backend: Runner, files: LocalPair) -> None:
    """Beyond the window and beyond the positions that the scaling stretches."""
    options = Options("tiny", backend, threads=1, context=256, costs=eager)
    with (
        closing(load_on(backend, files, options)) as drafting,
        closing(load_on(backend, files, replace(options, draft=False))) as plain,
    ):
        assert drafting.host
        assert [one.name for one in drafting.host.drafters if one.reads_taps] == ["dflash"]
        steps = 0
        for seed, params in enumerate((GREEDY, SAMPLED, GREEDY)):
            ids = ids_of(100, seed)
            wanted, _ = text_of(plain, ids, params)
            found, request = text_of(drafting, ids, params)
            assert found == wanted
            steps += request.stats.steps_by_drafter.get("dflash", 0)
            drafting.pair.rollback(110)  # as where an answer is asked for anew
            again, _ = text_of(drafting, [*ids, *wanted[:10]], GREEDY)
            assert again == text_of(plain, [*ids, *wanted[:10]], GREEDY)[0]
        assert steps > 20
