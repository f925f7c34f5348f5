"""A model with recurrent layers, loaded as a pair: planned with its states, drafting where they can be taken back."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from localdflash.backends.llamacpp import certified
from localdflash.backends.llamacpp.certified import Certified, Record
from localdflash.backends.llamacpp.decode_flags import MOST_WITH_STATES, NOT_REPACKED, Way
from localdflash.backends.llamacpp.load_llamacpp import load
from localdflash.engine.checkpoints import MOST as CHECKPOINTS
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import TARGET_KV
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running
from tests.support.converted_models import ids_of
from tests.support.costs import drafting_pays
from tests.support.target_models import case_of

WAY = Way(NOT_REPACKED, tuple(range(2, MOST_WITH_STATES + 1)), borders=True)
OPTIONS = Options(threads=1, context=256, rows="exact", device="cpu", costs=drafting_pays)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> LocalPair:
    path = case_of("qwen35", "Q8_0").write(tmp_path_factory.mktemp("states") / "model.gguf", "Q8_0")
    return LocalPair("tiny", path, None, None, None, None)


@pytest.fixture
def running(files: LocalPair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    record = Record(1.0, (Certified(WAY, {2: 1.0}),), MOST_WITH_STATES)
    monkeypatch.setattr(certified, "measure", lambda *_: record)
    found = load(files, OPTIONS)
    with closing(found):
        yield found


def text_of(running: Running, ids: list[int], draft: bool) -> tuple[list[int], Request]:
    running.pair.forget()
    request = Request(ids, 60, SamplingParams(temperature=0.0), documents=[ids], draft=draft)
    return [token for step in generate(running.pair, request) for token in step.tokens], request


def test_it_drafts_and_its_text_is_that_of_plain_decoding(running: Running) -> None:
    ids = ids_of(100)
    plain, _ = text_of(running, ids, draft=False)
    again, request = text_of(running, [*ids, *plain[:40], *ids, *plain[:5]], draft=True)
    same, _ = text_of(running, [*ids, *plain[:40], *ids, *plain[:5]], draft=False)
    assert again == same
    assert request.stats.drafted > 0


def test_its_states_are_planned(running: Running) -> None:
    """And no others: what is held now lacks the checkpoints alone."""
    running.pair.prefill(ids_of(100))
    planned, held = running.predicted[TARGET_KV], running.measured()[TARGET_KV]
    copied = running.host.target.copied_bytes  # type: ignore[union-attr]
    assert copied > 0
    assert planned == pytest.approx(held + (CHECKPOINTS - 1) * copied, rel=0.02)


def test_where_nothing_can_be_taken_back_it_decodes_plainly_and_says_so(
    files: LocalPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certified, "measure", lambda *_: Record(1.0, (), most=1))
    with closing(load(files, OPTIONS)) as running:
        assert running.rows.startswith("plain: nothing is drafted, for llama.cpp cannot take back the states")
        text, request = text_of(running, ids_of(50), draft=True)
        assert (len(text), request.stats.drafted) == (60, 0)
        assert text_of(running, ids_of(50), draft=True)[0] == text
