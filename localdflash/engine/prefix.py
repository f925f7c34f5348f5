"""The prefix cache: saved sequences, target's and drafters' half always together.

The live sequence of a pair is a cache of its own: `prefill` crops it to what a new prompt shares. This one holds the
others, so that two documents, or a chat and an editor, do not evict each other at every request. At the end of a
process it may be written to disk, for the next one.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from localdflash.engine.common_prefix import begins_with, count_common_prefix
from localdflash.engine.pair import Pair, SavedSequence, StateLost

if TYPE_CHECKING:  # the disk needs packages that a machine for GPU tests may lack
    from localdflash.engine.prefix_disk import DiskCache

log = logging.getLogger(__name__)

MOST = 64  # states: more documents than anybody has open; looking through hundreds takes as long as some steps
WORTH_KEEPING = 32  # tokens; computing less again is cheaper than copying a state


class PrefixCache:
    """Saved states up to a budget of bytes and `MOST` of them; the least recently used go first.

    `disk` holds those of an earlier process.
    """

    def __init__(self, budget: int, disk: "DiskCache | None" = None) -> None:
        self._budget, self._disk = budget, disk
        self._states: OrderedDict[tuple[int, ...], SavedSequence] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes held; any thread may ask."""
        return sum(state.size for state in list(self._states.values()))

    def load_longest(self, pair: Pair, ids: Sequence[int]) -> None:
        """Before a prefill of `ids`, load the saved state that shares most with it, if it beats the live one.

        A state whose bytes were lost is dropped, and the next best one taken.
        """
        live, ids = tuple(pair.cached), tuple(ids)
        shared = count_common_prefix(live, ids)
        best = self._best(ids, shared + WORTH_KEEPING)
        loses = self._budget > 0 and len(live) - shared >= WORTH_KEEPING
        if loses and not any(begins_with(key, live) and state.contains(live) for key, state in self._states.items()):
            self._put(pair.save())  # this may evict `best`, which is still at hand
        while best is not None and not self._loads(pair, best):
            best = self._best(ids, shared + WORTH_KEEPING)

    def _best(self, ids: tuple[int, ...], longest: int) -> SavedSequence | None:
        """The saved state that shares most with `ids`, if that is at least `longest` tokens."""
        best: SavedSequence | None = None
        for state in self._states.values():
            if longest <= len(ids) and begins_with(state.ids, ids[:longest]) and state.shared(ids) >= longest:
                best, longest = state, state.shared(ids)
        if self._disk and (written := self._disk.find_longest(ids, longest + (best is not None))):
            best = written
        return best

    def _loads(self, pair: Pair, state: SavedSequence) -> bool:
        """Load a state; False if its bytes were lost: it is dropped, and costs no more than computing it again."""
        self._put(state)
        try:
            pair.load(state)
        except StateLost as error:
            self._states.pop(state.ids, None)
            log.warning("a saved prefix of %d tokens is dropped: %s", len(state.ids), error)
            return False
        return True

    def write_to_disk(self, pair: Pair) -> None:
        """Write all states to disk at the end of a process, if there is one; OSError if that fails."""
        if not self._disk:
            return
        for state in self._states.values():
            with suppress(StateLost):  # it would have been dropped
                self._disk.keep(state)
        if len(pair.cached) >= WORTH_KEEPING:
            with suppress(StateLost):
                self._disk.keep(pair.save())

    def _put(self, state: SavedSequence) -> None:
        if state.size > self._budget:
            return  # it would evict everything and then itself
        for key in [key for key in self._states if begins_with(state.ids, key) and state.contains(key)]:
            del self._states[key]
        self._states[state.ids] = state
        held = self.size
        while held > self._budget or len(self._states) > MOST:
            _, oldest = self._states.popitem(last=False)
            held -= oldest.size
