"""A pair with a draft model, an MTP head or EAGLE-3 generates the text of decoding without drafts.

Drafters with random weights are rarely accepted, so a random number of their tokens is replaced by expected ones.
Accepted, rejected, rolled back and saved tokens all pass through their caches.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localdflash.backends.llamacpp import certified
from localdflash.backends.llamacpp.certified import FileMeasurement, MeasuredMode
from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH_WITH_STATES, NOT_REPACKED, DecodeMode
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.llamacpp.load_llamacpp import load, open_drafter
from localdflash.base.errors import ModelError
from localdflash.engine.draft import Draft
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Drafter, TargetFeatures
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import DRAFTER, TARGET
from localdflash.models.registry.pair_entry import LocalPair
from tests.support import mtp_models
from tests.support.converted_models import VOCABULARY, ids_of
from tests.support.costs import drafting_pays
from tests.support.eagle3_models import random_eagle3
from tests.support.guessing import Eager
from tests.support.requests import GREEDY, random_requests, run
from tests.support.target_models import case_of

WAY = DecodeMode(NOT_REPACKED, tuple(range(2, MAX_WIDTH_WITH_STATES + 1)), borders=True)
CONTEXT, BIG = 200, 1 << 30
TOKENS = [f"<{token}>" for token in range(VOCABULARY)]
KINDS = ("draft-model", "draft-model with recurrent layers", "mtp", "eagle3")


def files_of(kind: str, folder: Path) -> LocalPair:
    """Write target and drafter with random weights; a draft model is the slightly changed target."""
    target, drafter = folder / "target.gguf", folder / "drafter.gguf"
    if kind == "mtp":
        mtp_models.case_of("qwen35", "Q8_0")[0].write(target, "Q8_0", tokens=TOKENS)
        return LocalPair("tiny", target, None, None, None, None)
    case = case_of({"eagle3": "gpt-oss", "draft-model": "llama"}.get(kind, "qwen35"))
    case.write(target, "Q8_0", tokens=TOKENS)
    if kind == "eagle3":  # the last block's output is a tap too, if llama.cpp provides it
        eagle = random_eagle3(case.tensors["token_embd.weight"], case.tensors["output.weight"], (0, 1, 3))
        return LocalPair("tiny", target, eagle.write(drafter, VOCABULARY, TOKENS), None, None, None)
    rng = np.random.default_rng(4)
    for name, values in case.tensors.items():
        case.tensors[name] = (values * (1 + 0.1 * rng.normal(size=values.shape))).astype(np.float32)
    case.write(drafter, tokens=TOKENS)
    return LocalPair("tiny", target, drafter, None, None, None)


class Helped:
    """A drafter some of whose tokens are replaced by those of `coming`."""

    def __init__(self, drafter: Drafter, seed: int) -> None:
        self.drafter, self._random = drafter, np.random.default_rng(seed)
        self.name, self.is_model, self.is_autoregressive = drafter.name, True, True
        self.max_draft_tokens = drafter.max_draft_tokens
        self.coming: list[int] = []
        self.length = 0

    @property
    def unread_tokens(self) -> int:
        return self.drafter.unread_tokens

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None) -> None:
        self.length += len(ids)
        self.drafter.observe(ids, taps)

    def propose(self, anchor: int, limit: int) -> Draft:
        draft = self.drafter.propose(anchor, int(self._random.integers(1, limit + 1)))
        known = self.coming[self.length + 1 :][: int(self._random.integers(0, len(draft) + 1))]
        return Draft(self.name, [*known, *draft.tokens[len(known) :]], draft.confidence)

    def rollback(self, length: int) -> None:
        self.length = length
        self.drafter.rollback(length)

    def save(self) -> bytes:
        return self.drafter.save()

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        self.length = len(ids)
        self.drafter.load(state, ids)


class Tried:
    """A pair, and decoding of the same target without drafts."""

    def __init__(self, kind: str, folder: Path, stack: ExitStack) -> None:
        files, mtp = files_of(kind, folder), kind == "mtp"
        self._plain = stack.enter_context(closing(LlamaCppTarget(files.target, CONTEXT, 1, (), WAY)))
        target = stack.enter_context(closing(LlamaCppTarget(files.target, CONTEXT, 1, (), WAY, mtp=mtp)))
        drafter, *_ = open_drafter(files.drafter_gguf or files.target, files.target, target, 1, stack)
        self.helped = Helped(drafter, 1)
        self.pair = HostPair(target, [self.helped], Eager({1: 1.0, 2: 1.0}, {drafter.name: 0.0}))

    def plain(self, ids: list[int], count: int, params: SamplingParams = GREEDY) -> list[int]:
        self._plain.crop(0)
        actual, _ = run(HostPair(self._plain), ids, count, params=params, draft=False)
        self.helped.coming = [*ids, *actual]
        return actual


@pytest.fixture(scope="module", params=KINDS)
def tried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    with ExitStack() as stack:
        yield Tried(request.param, tmp_path_factory.mktemp("drafting"), stack)


def test_random_requests_and_a_text_up_to_the_end_of_the_context(tried: Tried) -> None:
    prefixes, accepted, drafted = PrefixCache(BIG), 0, 0
    tried.pair.forget()
    for prompt, count, params in random_requests(tried.pair, 8, seed=1):
        expected = tried.plain(prompt, 24, params)
        actual, request = run(tried.pair, prompt, count, prefixes, params=params)
        assert actual == expected[:count]
        accepted, drafted = accepted + request.stats.accepted, drafted + request.stats.drafted
    assert 20 < accepted < drafted
    ids = ids_of(160)
    expected = tried.plain(ids, 99)
    actual, request = run(tried.pair, ids, 99)
    assert (actual, request.finish_reason, len(ids) + len(actual)) == (expected, "context", CONTEXT)
    assert run(tried.pair, ids, 99)[0] == expected


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPair:
    record = FileMeasurement(1.0, (MeasuredMode(WAY, {2: 1.0}),), MAX_WIDTH_WITH_STATES)
    monkeypatch.setattr(certified, "measure", lambda *_: record)
    return files_of(request.param, tmp_path)


OPTIONS = Options(threads=1, context=CONTEXT, rows="exact", device="cpu", costs=drafting_pays)


def test_pair_is_planned_loaded_and_drafts(files: LocalPair) -> None:
    running = load(files, OPTIONS)
    with closing(running):
        name = running.drafters[-1]
        assert name == ("mtp" if not files.drafter_gguf else "draft-model" if name == "draft-model" else "eagle3")
        ids = ids_of(60)
        actual, request = run(running.pair, ids, 40)
        running.pair.forget()
        assert actual == run(running.pair, ids, 40, draft=False)[0]
        assert request.stats.steps_by_drafter.get(name) or name != "draft-model"  # the others are random
        measured = running.measured()
        for part in (TARGET, DRAFTER):
            assert running.predicted[part] == measured[part] > 0
        assert sum(running.predicted.values()) == pytest.approx(sum(measured.values()), rel=0.5)
    with closing(load(files, replace(OPTIONS, draft=False))) as running:
        assert running.drafters == []
        assert DRAFTER not in running.measured()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_hidden_size": 32}, "reads hidden states of size 32"),
        ({"target_layers": [1, 2, 9]}, "reads blocks"),
        ({"embedding_length": 32}, "hidden size 32"),
        ({}, "d2t contains ids outside"),
    ],
)
def test_eagle3_file_that_would_crash_llama_cpp_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    case = case_of("llama")
    target = case.write(tmp_path / "target.gguf", tokens=TOKENS)
    eagle = random_eagle3(
        case.tensors["token_embd.weight"], case.tensors["output.weight"], short=(1, 2, VOCABULARY - bool(changes))
    )
    path = eagle.write(tmp_path / "eagle3.gguf", VOCABULARY, TOKENS, **changes)
    with pytest.raises(ModelError, match=message):
        load(LocalPair("tiny", target, path, None, None, None), OPTIONS)


def test_unavailable_tap_disables_the_drafter(tmp_path: Path) -> None:
    case = case_of("llama")
    target = case.write(tmp_path / "target.gguf", tokens=TOKENS)
    eagle = random_eagle3(case.tensors["token_embd.weight"], case.tensors["output.weight"], (0, 1, 2))
    path = eagle.write(tmp_path / "eagle3.gguf", VOCABULARY, TOKENS)
    with closing(load(LocalPair("tiny", target, path, None, None, None), OPTIONS)) as running:
        assert running.drafters == ["lookup"]
        assert any("exports no output of llama's last block" in line for line in running.notices)
