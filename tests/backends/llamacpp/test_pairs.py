"""A pair on llama.cpp, for every architecture: plain decoding's text, whatever is drafted, reused or cut short."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.llamacpp.decode_flags import NOT_REPACKED, Way
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.engine.controller import Controller
from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling_params import SamplingParams
from tests.support.converted_models import VOCABULARY, ids_of
from tests.support.guessing import Eager, Guessing
from tests.support.target_models import ARCHITECTURES, RECURRENT, case_of

WAY = Way(NOT_REPACKED, tuple(range(2, 17)))
CONTEXT, TAPS, BIG = 200, (0, 1), 1 << 30
GREEDY, SAMPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=7)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return case_of(request.param, "Q8_0").write(tmp_path_factory.mktemp("pair") / f"{request.param}.gguf", "Q8_0")


@pytest.fixture(scope="module")
def target(path: Path) -> Iterator[LlamaCppTarget]:
    with closing(LlamaCppTarget(path, CONTEXT, 1, TAPS, WAY)) as target:
        yield target


class Plain:
    """Plain decoding, prompts read from their beginning: texts, and the taps of all that is cached then."""

    def __init__(self, target: LlamaCppTarget) -> None:
        self._seen = Guessing(VOCABULARY, 0)
        self._pair = HostPair(target, [self._seen], Eager({1: 1.0, 2: 1.0}, {"guess": 0.0}))
        self._pair.drafting_enabled = False

    def __call__(
        self, ids: list[int], count: int, params: SamplingParams = GREEDY
    ) -> tuple[list[int], Sequence[NDArray[np.float32]]]:
        self._pair.forget()
        request = Request(ids, count, params, draft=False)
        return [token for step in generate(self._pair, request) for token in step.tokens], list(self._seen.taps)


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[Plain]:
    with closing(LlamaCppTarget(path, CONTEXT, 1, TAPS, WAY)) as target:
        yield Plain(target)


def drafting(target: LlamaCppTarget, seed: int = 0) -> tuple[HostPair, Guessing]:
    target.crop(0)
    guessing = Guessing(VOCABULARY, 15, seed)
    controller: Controller = Eager({1: 1.0, 2: 1.0}, {"guess": 0.0})
    return HostPair(target, [guessing], controller), guessing


def run(
    pair: HostPair, ids: list[int], count: int, prefixes: PrefixCache | None = None, **how: object
) -> tuple[list[int], Request]:
    request = Request(ids, count, **{"params": GREEDY, **how})  # type: ignore[arg-type]
    return [token for step in generate(pair, request, prefixes) for token in step.tokens], request


def test_random_requests(target: LlamaCppTarget, plain: Plain) -> None:
    """Two documents and what was typed after a part of them, some answers cut short; taps are plain decoding's, too."""
    random, documents = np.random.default_rng(0), (ids_of(100, 1), ids_of(100, 2))
    pair, guessing = drafting(target)
    prefixes, accepted, drafted = PrefixCache(BIG), 0, 0
    for _ in range(12):
        prompt = [*documents[random.integers(2)][: random.integers(1, 100)], *ids_of(int(random.integers(3)), 7)]
        prompt = prompt if random.random() < 0.7 or len(pair.ids) > 120 else [*pair.ids, 5]  # as a chat goes on
        params = SAMPLED if random.random() < 0.3 else GREEDY
        wanted, taps = plain(prompt, 30, params)
        guessing.coming = [*prompt, *wanted]
        left = int(random.integers(1, 30)) if random.random() < 0.4 else 30
        found, request = run(pair, prompt, left, prefixes, params=params)
        assert found == wanted[: len(found)]
        assert len(found) == left
        assert guessing.ids == pair.ids[:-1]
        assert np.array_equal(guessing.taps, taps[: len(guessing.taps)])
        accepted, drafted = accepted + request.stats.accepted, drafted + request.stats.drafted
    assert 20 < accepted < drafted


def test_a_text_up_to_the_end_of_the_context(target: LlamaCppTarget, plain: Plain) -> None:
    ids = ids_of(150)
    wanted, _ = plain(ids, 99)
    pair, guessing = drafting(target)
    guessing.coming = [*ids, *wanted]
    found, request = run(pair, ids, 99)
    assert (found, request.finish_reason, len(ids) + len(found)) == (wanted, "context", CONTEXT)
    assert run(pair, ids, 99)[0] == wanted


def test_a_cancelled_prompt_and_a_cancelled_answer(target: LlamaCppTarget, plain: Plain) -> None:
    ids = ids_of(120)
    wanted, _ = plain(ids, 30)
    pair, guessing = drafting(target)
    guessing.coming = [*ids, *wanted]
    asked = iter([False, False, False, True])
    assert run(pair, ids, 30, cancelled=lambda: next(asked, True))[0] == []
    assert 0 < len(pair.cached) < 119
    enough = iter([False] * 12)
    begun, request = run(pair, ids, 30, cancelled=lambda: next(enough, True))
    assert (begun, request.finish_reason) == (wanted[: len(begun)], "cancelled")
    found, request = run(pair, ids, 30)
    assert found == wanted
    assert request.computed_tokens == 0


def test_the_next_question_of_a_chat_goes_on_from_where_the_prompt_ended(
    target: LlamaCppTarget, plain: Plain, path: Path
) -> None:
    """Though the answer is not in it as it was given."""
    question = ids_of(100)
    pair, guessing = drafting(target)
    run(pair, question, 30)
    again = [*question, 1, 2, 3]
    wanted, _ = plain(again, 30)
    guessing.coming = [*again, *wanted]
    found, request = run(pair, again, 30)
    assert found == wanted
    assert request.computed_tokens <= 3
    assert target.is_recurrent == (path.stem in RECURRENT)


@pytest.mark.parametrize("path", ["gpt-oss", "gemma4"], indirect=True)
@pytest.mark.parametrize("between", [0, 20])
def test_a_shorter_part_of_a_saved_sequence_has_all_keys_of_its_window(
    target: LlamaCppTarget, plain: Plain, between: int
) -> None:
    """llama.cpp alone would leave them out, and put the next rows into their cells."""
    ids = ids_of(110)
    shorter = [*ids[:50], 7]
    wanted, _ = plain(shorter, 20)
    pair, _ = drafting(target)
    run(pair, ids, 5)
    state = pair.save()
    run(pair, ids_of(60, seed=9), 5)
    pair.load(state)
    if between:
        run(pair, [*state.ids, 1], between)
    found, request = run(pair, shorter, 20)
    assert (found, request.computed_tokens) == (wanted, 0)
