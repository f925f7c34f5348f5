"""Prefix cache while typing: only new tokens are computed, and drafts after a hit are those of a cold start."""

from collections.abc import Iterator

import pytest

from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.prefix import PrefixCache
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.text.fim_formats import build

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
    for typed, most in (("", 999), ("f", 4), ("f.", 4), ("f.items", 4), ("f.items", 0), ("f.it", 4)):
        if typed == "f.items" and not most:
            run(loaded, other, prefixes)  # another document evicts nothing
        ids = build(*fim, PREFIX + typed, SUFFIX)
        text, computed = run(loaded, ids, prefixes)
        assert computed <= most, typed
        warm[typed] = text, drafts(loaded, ids)
    for typed, (text, drafted) in warm.items():
        ids = build(*fim, PREFIX + typed, SUFFIX)
        loaded.pair.forget()
        assert run(loaded, ids) == (text, len(ids) - 1)
        loaded.pair.forget()
        assert drafts(loaded, ids) == drafted
        assert drafted.keys() == {"lookup", "dflash"}
