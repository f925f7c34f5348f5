"""A pair on llama.cpp, for every architecture: drafts, reuse and cancellation change no token."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from localdflash.backends.llamacpp.decode_flags import KV_TYPES, NOT_REPACKED, DecodeMode
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.llamacpp.load_llamacpp import load
from localdflash.engine.host_pair import HostPair
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import TARGET_KV
from localdflash.models.registry.pair_entry import LocalPair
from tests.support.converted_models import VOCABULARY, ids_of
from tests.support.guessing import Eager, Guessing
from tests.support.requests import GREEDY, random_requests, run
from tests.support.target_models import ARCHITECTURES, WITHOUT_WAY_BACK, case_of, taps_of

WAY = DecodeMode(NOT_REPACKED, tuple(range(2, 17)))
CONTEXT, BIG = 200, 1 << 30


@pytest.fixture(scope="module", params=ARCHITECTURES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return case_of(request.param, "Q8_0").write(tmp_path_factory.mktemp("pair") / f"{request.param}.gguf", "Q8_0")


@pytest.fixture(scope="module")
def target(path: Path) -> Iterator[LlamaCppTarget]:
    with closing(LlamaCppTarget(path, CONTEXT, 1, taps_of(path.stem), WAY)) as target:
        yield target


class Plain:
    """Decoding without drafts, prompts read from the beginning: returns text and the taps of all cached tokens."""

    def __init__(self, target: LlamaCppTarget) -> None:
        self._seen = Guessing(VOCABULARY, 0)
        self._pair = HostPair(target, [self._seen], Eager({1: 1.0, 2: 1.0}, {"guess": 0.0}))
        self._pair.drafting_enabled = False

    def __call__(self, ids: list[int], count: int, params: SamplingParams = GREEDY) -> tuple[list[int], Sequence[Any]]:
        self._pair.forget()
        return run(self._pair, ids, count, params=params, draft=False)[0], list(self._seen.taps)


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[Plain]:
    with closing(LlamaCppTarget(path, CONTEXT, 1, taps_of(path.stem), WAY)) as target:
        yield Plain(target)


def drafting(target: LlamaCppTarget) -> tuple[HostPair, Guessing]:
    target.crop(0)
    guessing = Guessing(VOCABULARY, 15)
    return HostPair(target, [guessing], Eager({1: 1.0, 2: 1.0}, {"guess": 0.0})), guessing


def test_random_requests(target: LlamaCppTarget, plain: Plain) -> None:
    """The target's features also equal those without drafting."""
    pair, guessing = drafting(target)
    prefixes, accepted, drafted = PrefixCache(BIG), 0, 0
    for prompt, count, params in random_requests(pair, 12, seed=0):
        expected, taps = plain(prompt, 24, params)
        guessing.coming = [*prompt, *expected]
        actual, request = run(pair, prompt, count, prefixes, params=params)
        assert actual == expected[:count]
        assert guessing.ids == pair.ids[:-1]
        assert np.array_equal(guessing.taps, taps[: len(guessing.taps)])
        accepted, drafted = accepted + request.stats.accepted, drafted + request.stats.drafted
    assert 20 < accepted < drafted


@pytest.mark.parametrize("path", ["gpt-oss", "gemma4"], indirect=True)
def test_prefix_of_a_saved_sequence_has_all_keys_of_its_window(target: LlamaCppTarget, plain: Plain) -> None:
    """llama.cpp alone would drop them, and reuse their cells."""
    ids = ids_of(110)
    shorter = [*ids[:50], 7]
    expected, _ = plain(shorter, 20)
    for between in (0, 20):
        pair, _ = drafting(target)
        run(pair, ids, 5)
        state = pair.save()
        run(pair, ids_of(60, seed=9), 5)
        pair.load(state)
        if between:
            run(pair, [*state.ids, 1], between)
        actual, request = run(pair, shorter, 20)
        assert (actual, request.computed_tokens) == (expected, 0)


@pytest.mark.measures_rows
@pytest.mark.parametrize("kv", KV_TYPES)
def test_quantized_kv_cache_has_the_planned_size_and_exact_widths(kv: str, tiny_pair: Path) -> None:
    files = LocalPair("tiny", tiny_pair / "target.gguf", tiny_pair / "drafter.gguf", None, None)
    sizes, identities = list[int](), set[str]()
    for each in ("auto", kv):
        options = Options(threads=1, context=1024, rows="exact", device="cpu", kv=each)
        with closing(load(files, options)) as running:
            assert running.width_status.startswith("exact: ")
            predicted, measured = running.predicted_memory[TARGET_KV], running.measured()[TARGET_KV]
            assert abs(predicted - measured) < 0.05 * measured
            sizes.append(measured)
            identities.add(repr(running.identity))
    bits = {"int8": 8.5, "k8v4": 6.5}[kv]  # per number of K and V
    assert sizes[1] / sizes[0] == pytest.approx(bits / 16, rel=0.05)
    assert len(identities) == 2


@pytest.mark.measures_rows  # although there is nothing to measure
@pytest.mark.parametrize("architecture", WITHOUT_WAY_BACK)
def test_model_without_rollback_drafts_nothing_and_matches_hugging_face(architecture: str, tmp_path: Path) -> None:
    case, prefixes, computed, prompts = case_of(architecture), PrefixCache(BIG), 0, 0
    files = LocalPair("tiny", case.write(tmp_path / "model.gguf"), None, None, None)

    @torch.inference_mode()
    def likeliest(ids: list[int], count: int) -> list[int]:
        text = list(ids)
        for _ in range(count):
            text.append(int(case.model(torch.tensor([text])).logits[0, -1].argmax()))
        return text[len(ids) :]

    with closing(load(files, Options(threads=1, context=256, rows="exact", device="cpu"))) as running:
        assert "recurrent layers" in running.width_status
        ids = ids_of(40) * 2  # prompt lookup would find a draft
        actual, request = run(running.pair, ids, 30, documents=[ids])
        assert (actual, request.stats.drafted) == (likeliest(ids, 30), 0)
        for ids, count, _ in random_requests(running.pair, 6, seed=0):  # type: ignore[arg-type]
            actual, request = run(running.pair, ids, count := count // 2 + 1, prefixes)
            assert actual == likeliest(ids, count)
            computed, prompts = computed + request.computed_tokens, prompts + len(ids)
    assert computed < 0.9 * prompts, "some prompts continue from a kept state"
