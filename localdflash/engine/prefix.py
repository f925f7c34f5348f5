"""Prefix cache: saved sequences, the states of target and drafters together.

The pair's own sequence is a cache too: `prefill` crops it to the prefix that a new prompt shares. The prefix cache
holds other sequences, so that two documents, or a chat and an editor, do not evict each other at every request.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from localdflash.engine.common_prefix import begins_with, count_common_prefix
from localdflash.engine.pair import Pair, SavedSequence, StateLost

if TYPE_CHECKING:  # the disk cache needs packages that a machine for GPU tests may lack
    from localdflash.engine.prefix_disk import DiskCache

log = logging.getLogger(__name__)

MAX_SEQUENCES = 64  # more than a user has documents open; searching hundreds takes as long as some steps
MIN_GAIN_TOKENS = 32  # computing fewer tokens again is cheaper than copying a state


class PrefixCache:
    """LRU cache of saved sequences, limited to `budget` bytes and `MAX_SEQUENCES`; `disk` stores them across runs."""

    def __init__(self, budget: int, disk: "DiskCache | None" = None) -> None:
        self._budget, self._disk = budget, disk
        self._states: OrderedDict[tuple[int, ...], SavedSequence] = OrderedDict()

    @property
    def size(self) -> int:
        """Size in bytes. Any thread may read this property."""
        return sum(state.size for state in list(self._states.values()))

    def load_longest(self, pair: Pair, ids: Sequence[int]) -> None:
        """Load the longest saved prefix of `ids` into a pair; first save the pair's sequence if much would be lost."""
        live_ids, ids = tuple(pair.cached), tuple(ids)
        shared = count_common_prefix(live_ids, ids)
        best = self._find_longest(ids, shared + MIN_GAIN_TOKENS)
        must_save = self._budget > 0 and len(live_ids) - shared >= MIN_GAIN_TOKENS
        if must_save and not any(
            begins_with(key, live_ids) and state.contains(live_ids) for key, state in self._states.items()
        ):
            self._put(pair.save())  # this may evict `best`, which is still referenced here
        while best is not None and not self._try_load(pair, best):
            best = self._find_longest(ids, shared + MIN_GAIN_TOKENS)

    def _find_longest(self, ids: tuple[int, ...], min_tokens: int) -> SavedSequence | None:
        """Return the saved sequence that shares the most leading ids, None if fewer than `min_tokens`."""
        best: SavedSequence | None = None
        for state in self._states.values():
            if begins_with(state.ids, ids[:min_tokens]) and state.count_shared(ids) >= min_tokens:
                best, min_tokens = state, state.count_shared(ids)
        min_on_disk = min_tokens + 1 if best else min_tokens  # reading a file must save more tokens than memory does
        if self._disk and (on_disk := self._disk.find_longest(ids, min_on_disk)):
            best = on_disk
        return best

    def _try_load(self, pair: Pair, state: SavedSequence) -> bool:
        """Load a sequence; if its bytes were lost, drop it and return False."""
        self._put(state)
        try:
            pair.load(state)
        except StateLost as error:
            self._states.pop(state.ids, None)
            log.warning("dropped a saved prefix of %d tokens: %s", len(state.ids), error)
            return False
        return True

    def write_to_disk(self, pair: Pair) -> None:
        """Write all sequences to the disk cache, if there is one, before the process ends; OSError if writing fails."""
        if not self._disk:
            return
        for state in self._states.values():
            with suppress(StateLost):
                self._disk.write(state)
        if len(pair.cached) >= MIN_GAIN_TOKENS:
            with suppress(StateLost):
                self._disk.write(pair.save())

    def _put(self, state: SavedSequence) -> None:
        if state.size > self._budget:
            return  # it would evict everything and then itself
        for key in [key for key in self._states if begins_with(state.ids, key) and state.contains(key)]:
            del self._states[key]
        self._states[state.ids] = state
        size = self.size
        while size > self._budget or len(self._states) > MAX_SEQUENCES:
            _, oldest = self._states.popitem(last=False)
            size -= oldest.size
