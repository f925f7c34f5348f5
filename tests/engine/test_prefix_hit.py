"""The cache that typing relies on: only new tokens are computed, and drafts after a hit are those of a cold start."""

from collections.abc import Iterator

import pytest

from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.prefix import PrefixCache
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.text.fim import build

PREFIX = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        sel"
SUFFIX = "\n\n    def pop(self):\n        return self.items.pop()\n"


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedPair]:
    with LoadedPair(Options(threads=1, backend="llama.cpp")) as pair:
        yield pair


def ids_of(loaded: LoadedPair, typed: str) -> list[int]:
    return build(loaded.fim_format(), loaded.tokenizer, PREFIX + typed, SUFFIX)


def run(loaded: LoadedPair, ids: list[int], prefixes: PrefixCache | None = None) -> tuple[list[int], int]:
    request = Request(ids, 24, ends=loaded.tokenizer.ends)
    tokens = [token for step in generate(loaded.pair, request, prefixes) for token in step.tokens]
    return tokens, request.computed_tokens


def drafts(loaded: LoadedPair) -> dict[str, list[int]]:
    assert isinstance(loaded.pair, HostPair)
    return {d.name: list(d.propose(loaded.pair.ids[-1], 7).tokens) for d in loaded.pair.drafters}


def test_typing_one_character_computes_only_the_new_tokens(loaded: LoadedPair) -> None:
    loaded.pair.forget()
    _, cold = run(loaded, ids_of(loaded, ""))
    assert cold == len(ids_of(loaded, "")) - 1
    for typed in ("f", "f.", "f.i"):
        _, computed = run(loaded, ids_of(loaded, typed))
        assert computed <= 4, typed


def test_what_follows_a_cache_hit_is_what_follows_a_cold_start(loaded: LoadedPair) -> None:
    for typed in ("", "f", "f.items", "f.items."):
        ids = ids_of(loaded, typed)
        warm, _ = run(loaded, ids)
        loaded.pair.forget()
        assert run(loaded, ids)[0] == warm, typed


def test_every_drafter_drafts_the_same_after_a_hit(loaded: LoadedPair) -> None:
    ids = ids_of(loaded, "f.it")
    loaded.pair.forget()
    loaded.pair.prefill(ids)
    cold = drafts(loaded)
    assert cold.keys() == {"lookup", "dflash"}
    run(loaded, ids_of(loaded, "f.items.app"))
    loaded.pair.prefill(ids)
    assert drafts(loaded) == cold


def test_two_documents_do_not_evict_each_other(loaded: LoadedPair) -> None:
    loaded.pair.forget()
    prefixes = PrefixCache(64_000_000)
    first = ids_of(loaded, "f.items")
    second = build(loaded.fim_format(), loaded.tokenizer, "import os\n\n" * 30 + "def main():\n    ", "\n")
    expected, _ = run(loaded, first, prefixes)
    run(loaded, second, prefixes)
    again, computed = run(loaded, first, prefixes)
    assert (again, computed) == (expected, 0)
    loaded.pair.prefill(first)
    warm = drafts(loaded)
    loaded.pair.forget()
    loaded.pair.prefill(first)
    assert drafts(loaded) == warm
