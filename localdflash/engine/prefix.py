"""The prefix cache: saved sequences, target's and drafters' half always together.

The live sequence of a pair is a cache of its own: `prefill` crops it to what a new prompt shares. This one holds the
others, so that two documents, or a chat and an editor, do not evict each other at every request. At the end of a
process it may be written to disk, for the next one.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from localdflash.engine.common_prefix import begins_with, common_prefix
from localdflash.engine.pair import Pair, SavedSequence

if TYPE_CHECKING:  # the disk needs packages that a machine for GPU tests may lack
    from localdflash.engine.prefix_disk import DiskCache

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

    def prepare(self, pair: Pair, ids: Sequence[int]) -> None:
        """Before a prefill of `ids`, load the saved state that shares most with it, if it beats the live one."""
        live, ids = tuple(pair.cached), tuple(ids)
        shared = common_prefix(live, ids)
        longest = shared + WORTH_KEEPING
        best: SavedSequence | None = None
        for state in self._states.values():
            if longest <= len(ids) and begins_with(state.ids, ids[:longest]) and state.shared(ids) >= longest:
                best, longest = state, state.shared(ids)
        if self._disk and (written := self._disk.longest(ids, longest + (best is not None))):
            best = written
        loses = self._budget > 0 and len(live) - shared >= WORTH_KEEPING
        if loses and not any(begins_with(key, live) and state.contains(live) for key, state in self._states.items()):
            self._put(pair.save())  # this may evict `best`, which is still at hand
        if best is not None:
            self._put(best)
            pair.load(best)

    def write_out(self, pair: Pair) -> None:
        """Write all states to disk at the end of a process, if there is one; OSError if that fails."""
        if not self._disk:
            return
        for state in self._states.values():
            self._disk.keep(state)
        if len(pair.cached) >= WORTH_KEEPING:
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
