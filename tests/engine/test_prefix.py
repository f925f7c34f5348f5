"""Prefix cache: loading, eviction, and answers that a hit does not change."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Interrupt, SavedSequence, StateLost, never_interrupted
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.text.fim_formats import build

Make = Callable[..., Any]

DOCUMENTS = [list(range(start, start + 100)) for start in range(0, 6000, 1000)]


def saved(ids: Sequence[int], is_recurrent: bool = False) -> SavedSequence:
    return SavedSequence(tuple(ids), b"x" * 10 * len(ids), (b"y" * 10 * len(ids),), is_recurrent)


class Recorder:
    """Pair that counts tokens: prefills are instant, a state has ten bytes per token in each half."""

    is_recurrent = False

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.computed: list[int] = []
        self.saves = 0

    @property
    def cached(self) -> Sequence[int]:
        return self.ids[:-1]

    def prefill(self, ids: Sequence[int], interrupt: Interrupt = never_interrupted) -> int:
        self.computed.append(len(ids) - 1 - count_common_prefix(self.cached, ids[:-1]))
        self.ids = list(ids)
        return self.computed[-1]

    def save(self) -> SavedSequence:
        self.saves += 1
        return saved(self.cached, self.is_recurrent)

    def load(self, state: SavedSequence) -> None:
        assert len(state.target) == len(state.drafters[0]) == 10 * len(state.ids)
        self.ids = [*state.ids, -1]


@pytest.fixture
def pair() -> Recorder:
    return Recorder()


def ask(prefixes: PrefixCache, pair: Any, ids: list[int]) -> int:
    """Return the number of tokens computed for a prompt."""
    prefixes.load_longest(pair, ids)
    return int(pair.prefill(ids))


def test_documents_do_not_evict_each_other(pair: Recorder) -> None:
    prefixes = PrefixCache(1_000_000)
    assert [ask(prefixes, pair, d) for d in DOCUMENTS] == [99] * 6
    assert [ask(prefixes, pair, [*d, 7]) for d in DOCUMENTS] == [1] * 6
    assert [ask(prefixes, pair, [*d, 7, 8]) for d in reversed(DOCUMENTS)] == [1] * 6


@pytest.mark.parametrize(("shared", "saves"), [(99, 0), (68, 0), (67, 1)])
def test_a_sequence_is_saved_before_32_tokens_of_it_are_lost(pair: Recorder, shared: int, saves: int) -> None:
    prefixes = PrefixCache(1_000_000)
    ask(prefixes, pair, DOCUMENTS[0])
    assert ask(prefixes, pair, [*DOCUMENTS[0][:shared], 5, 6, 7]) == 2
    assert pair.saves == saves


@pytest.mark.parametrize(("shared", "computed"), [(31, 31), (32, 0), (99, 0)])
def test_a_saved_sequence_is_loaded_if_it_saves_32_tokens(pair: Recorder, shared: int, computed: int) -> None:
    prefixes = PrefixCache(1_000_000)
    for ids in DOCUMENTS[:2]:
        ask(prefixes, pair, ids)
    assert ask(prefixes, pair, [*DOCUMENTS[0][:shared], 7]) == computed


def test_recurrent_state_is_used_only_completely(pair: Recorder) -> None:
    prefixes, pair.is_recurrent = PrefixCache(1_000_000), True
    long, other = DOCUMENTS[:2]
    short = [*long[:50], 7]
    for ids, computed in ((long, 99), (other, 99), (short, 50), (other, 0), ([*short, 8], 1), (other, 0)):
        assert ask(prefixes, pair, ids) == computed
    for ids, computed in (([*long, 8], 1), (other, 0), ([*long[:50], 6], 0)):  # a longer state replaces none
        assert ask(prefixes, pair, ids) == computed


def test_the_budget_holds_and_the_least_recently_used_goes_first(pair: Recorder) -> None:
    prefixes = PrefixCache(2 * 20 * 99)  # two documents
    for ids in (*DOCUMENTS[:3], DOCUMENTS[0], DOCUMENTS[3]):  # 0 was used again: 1 is evicted first
        ask(prefixes, pair, ids)
        assert prefixes.size <= 2 * 20 * 99
    assert ask(prefixes, pair, [*DOCUMENTS[0], 1]) == 1
    assert ask(prefixes, pair, [*DOCUMENTS[1], 1]) == 100


def test_requested_state_is_not_evicted(pair: Recorder) -> None:
    prefixes = PrefixCache(20 * 99)  # one document
    ask(prefixes, pair, DOCUMENTS[0])
    ask(prefixes, pair, DOCUMENTS[1])  # saves document 0
    assert ask(prefixes, pair, [*DOCUMENTS[0], 1]) == 1  # while document 1 is saved


def test_a_longer_state_replaces_the_one_it_contains(pair: Recorder) -> None:
    prefixes = PrefixCache(1_000_000)
    ask(prefixes, pair, DOCUMENTS[0])
    ask(prefixes, pair, DOCUMENTS[1])
    ask(prefixes, pair, DOCUMENTS[0] + DOCUMENTS[2])
    ask(prefixes, pair, DOCUMENTS[3])
    assert prefixes.size == 20 * (99 + 199)  # document 1, and the longer state once


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_common_prefix_is_the_longest_one(a: list[int], b: list[int]) -> None:
    lengths = [n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n]]
    assert count_common_prefix(a, b) == count_common_prefix(tuple(b), a) == max(lengths)


STORIES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 60), st.lists(st.integers(0, 5), max_size=3)), min_size=2, max_size=10
)


@settings(max_examples=40, deadline=None)
@given(stories=STORIES, budget=st.sampled_from([0, 400, 1200, 100_000]), seed=st.integers(0, 9))
def test_answers_and_state_halves_match_a_cold_start(
    fake_target: Make,
    fake_drafter: Make,
    eager: Make,
    stories: list[tuple[int, int, list[int]]],
    budget: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    table = rng.normal(0, 2, (6, 6, 6)).astype(np.float32)
    documents = rng.integers(0, 6, (3, 60)).tolist()

    def invent(ids: list[int], limit: int) -> Any:
        tokens = [int(table[ids[-2] if len(ids) > 1 else 0, ids[-1]].argmax()), 0][:limit]
        return tokens, [0.5] * len(tokens)

    def answer(pair: HostPair, ids: list[int], prefixes: PrefixCache | None) -> list[int]:
        return [t for step in generate(pair, Request(ids, 6, SamplingParams()), prefixes) for t in step.tokens]

    target, drafter = fake_target(table), fake_drafter("model", invent)
    warm = HostPair(target, [drafter], eager("model"))
    prefixes = PrefixCache(budget)
    for which, length, typed in stories:
        ids = documents[which][:length] + typed
        assert ids
        assert answer(warm, ids, prefixes) == answer(HostPair(fake_target(table)), ids, None)
        assert drafter.observed == target.cached == warm.ids[:-1]
        assert prefixes.size <= budget


class Losing(Recorder):
    """Pair whose saved states of one length are lost."""

    def __init__(self, lost_length: int) -> None:
        super().__init__()
        self.lost_length, self.tried = lost_length, 0

    def load(self, state: SavedSequence) -> None:
        self.tried += 1
        if len(state.ids) == self.lost_length:
            raise StateLost("CUDA error: out of memory")
        super().load(state)


def test_lost_state_is_dropped_and_its_prompt_computed(caplog: pytest.LogCaptureFixture) -> None:
    prefixes, pair = PrefixCache(1_000_000), Losing(98)
    for document in (DOCUMENTS[0], DOCUMENTS[1][:99], DOCUMENTS[2]):
        ask(prefixes, pair, document)
    size = prefixes.size
    assert ask(prefixes, pair, DOCUMENTS[1]) == 99
    assert "prefix of 98 tokens: CUDA error: out of memory" in caplog.text
    assert (pair.tried, prefixes.size) == (1, size + 20)  # replaced by the live sequence, one token longer
    assert ask(prefixes, pair, [*DOCUMENTS[0], 7]) == 1
    assert pair.tried == 2


def test_at_most_64_states_are_stored(pair: Recorder) -> None:
    prefixes = PrefixCache(1 << 40)
    documents = [list(range(start, start + 40)) for start in range(0, 6700, 100)]
    for ids in documents:
        ask(prefixes, pair, ids)
    assert len(prefixes._states) == 64
    assert [ask(prefixes, pair, ids) for ids in (documents[-2], documents[0])] == [0, 39]  # the oldest was evicted


PREFIX = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        sel"
SUFFIX = "\n\n    def pop(self):\n        return self.items.pop()\n"


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedPair]:
    with LoadedPair(Options(threads=1, backend="llama.cpp")) as pair:
        yield pair


def run(loaded: LoadedPair, ids: list[int], prefixes: PrefixCache | None = None) -> tuple[list[int], int]:
    request = Request(ids, 24, ends=loaded.tokenizer.ends)
    tokens = [token for step in generate(loaded.pair, request, prefixes) for token in step.tokens]
    return tokens, request.computed_tokens


def drafts(loaded: LoadedPair, ids: list[int]) -> dict[str, list[int]]:
    assert isinstance(loaded.pair, HostPair)
    loaded.pair.prefill(ids)
    return {d.name: list(d.propose(ids[-1], 7).tokens) for d in loaded.pair.drafters}


def test_a_hit_computes_only_new_tokens_and_changes_neither_text_nor_drafts(loaded: LoadedPair) -> None:
    prefixes, fim = PrefixCache(64_000_000), (loaded.fim_format(), loaded.tokenizer)
    other = build(*fim, "import os\n\n" * 30 + "def main():\n    ", "\n")
    warm = {}
    for typed, max_computed in (("", 999), ("f", 4), ("f.", 4), ("f.items", 4), ("f.items", 0), ("f.it", 4)):
        if typed == "f.items" and not max_computed:
            run(loaded, other, prefixes)  # another document evicts nothing
        ids = build(*fim, PREFIX + typed, SUFFIX)
        text, computed = run(loaded, ids, prefixes)
        assert computed <= max_computed, typed
        warm[typed] = text, drafts(loaded, ids)
    for typed, (text, drafted) in warm.items():
        ids = build(*fim, PREFIX + typed, SUFFIX)
        loaded.pair.forget()
        assert run(loaded, ids) == (text, len(ids) - 1)
        loaded.pair.forget()
        assert drafts(loaded, ids) == drafted
        assert drafted.keys() == {"lookup", "dflash"}
