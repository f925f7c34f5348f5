"""Case-insensitive fuzzy search in names; it takes a few milliseconds for 20 000 names."""

import heapq
import itertools
import re
from collections.abc import Iterator, Sequence

_MAX_SPREAD = 6  # n scattered letters must occur within 6 n characters
_MAX_SCATTERED = 400  # names for which the spread of the letters is computed
_SCATTERED_TIER = 5  # index of the last tier, whose names come sorted
_INITIALS = re.compile(r"(?:^|(?<=[/_.\-\s:]))[^/_.\-\s:]|(?<=[a-z])[A-Z]")


class Haystack:
    """Names to search. `separator` separates the parts of a name; matches in the last part rank higher."""

    def __init__(self, names: Sequence[str], separator: str) -> None:
        self.names = names
        self._folded = [name.lower() for name in names]
        self._last = [name.rpartition(separator)[2] for name in self._folded]
        self._initials = ["".join(_INITIALS.findall(name)).lower() for name in names]

    def find_best(self, query: str, limit: int) -> list[tuple[int, int]]:
        """Return tier (0 is best) and index of at most `limit` names, best first; [] for an empty query."""
        query, results, seen = query.lower(), list[tuple[int, int]](), set[int]()
        if not query:
            return []
        for tier, matching in enumerate(self._tiers(query)):
            new = (index for index in matching if index not in seen)
            best = new if tier == _SCATTERED_TIER else heapq.nsmallest(limit - len(results), new, key=self._order)
            best = list(itertools.islice(best, limit - len(results)))
            results += [(tier, index) for index in best]
            seen.update(best)
            if len(results) == limit:
                break
        return results

    def _tiers(self, query: str) -> Iterator[list[int]]:
        """Yield the indices of the matching names of each tier, best tier first."""
        last, folded = self._last, self._folded
        yield [i for i, name in enumerate(last) if name == query or name.startswith(f"{query}.")]
        yield [i for i, name in enumerate(last) if name.startswith(query)]
        yield [i for i, name in enumerate(last) if query in name]
        yield [i for i, name in enumerate(self._initials) if query in name]
        yield [i for i, name in enumerate(folded) if query in name]
        yield self._find_scattered(query)

    def _find_scattered(self, query: str) -> list[int]:
        """Return the indices of names that contain the letters in order and close together, smallest span first."""
        # Each character class excludes the letter that follows it, so the regex never backtracks.
        scattered = re.compile("".join(f"[^{re.escape(letter)}]*{re.escape(letter)}" for letter in query), re.DOTALL)
        folded = self._folded
        matching = (index for index, name in enumerate(folded) if scattered.match(name))
        near = heapq.nsmallest(_MAX_SCATTERED, matching, key=self._order)
        spans = [(at[-1] - at[0], index) for index in near if (at := match_positions(query, folded[index]))]
        return [index for span, index in sorted(spans) if span < _MAX_SPREAD * len(query)]

    def _order(self, index: int) -> tuple[int, str]:
        return len(self._folded[index]), self._folded[index]


def match_positions(query: str, name: str) -> tuple[int, ...]:
    """Return the indices in `name` to highlight: adjacent if possible, as far right as possible; () without a match."""
    letters, needle = [character.lower() for character in name], query.lower()
    at = "".join(one if len(one) == 1 else "\0" for one in letters).rfind(needle)
    if at >= 0:
        return tuple(range(at, at + len(needle)))
    marked: list[int] = []
    index = len(name)
    for character in reversed(needle):
        index = next((at for at in range(index - 1, -1, -1) if letters[at] == character), -1)
        if index < 0:
            return ()
        marked.append(index)
    return tuple(reversed(marked))
