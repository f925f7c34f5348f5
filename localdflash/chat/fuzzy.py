"""Fuzzy search in names, ignoring case, best first: 20 000 names in a few milliseconds."""

import heapq
import itertools
import re
from collections.abc import Iterator, Sequence

_MAX_SPREAD = 6  # n letters must occur within 6 n characters
_MAX_SCATTERED = 400  # names whose letters are matched one by one
_SCATTERED_TIER = 5  # the last tier, already sorted
_INITIALS = re.compile(r"(?:^|(?<=[/_.\-\s:]))[^/_.\-\s:]|(?<=[a-z])[A-Z]")


class Haystack:
    """Names to search; `separator` precedes a name's last part."""

    def __init__(self, names: Sequence[str], separator: str) -> None:
        self.names = names
        self._folded = [name.lower() for name in names]
        self._last = [name.rpartition(separator)[2] for name in self._folded]
        self._initials = ["".join(_INITIALS.findall(name)).lower() for name in names]

    def find_best(self, query: str, limit: int) -> list[tuple[int, int]]:
        """Return the tiers (the lower, the better) and indices of at most `limit` names; none for an empty query."""
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
        last, folded = self._last, self._folded
        yield [i for i, name in enumerate(last) if name == query or name.startswith(f"{query}.")]
        yield [i for i, name in enumerate(last) if name.startswith(query)]
        yield [i for i, name in enumerate(last) if query in name]
        yield [i for i, name in enumerate(self._initials) if query in name]
        yield [i for i, name in enumerate(folded) if query in name]
        yield self._find_scattered(query)

    def _find_scattered(self, query: str) -> list[int]:
        """Return the indices of names with all letters in order and close together, the smallest span first."""
        # Each class stops at the letter after it, so a match never backtracks.
        scattered = re.compile("".join(f"[^{re.escape(letter)}]*{re.escape(letter)}" for letter in query), re.DOTALL)
        folded = self._folded
        matching = (index for index, name in enumerate(folded) if scattered.match(name))
        near = heapq.nsmallest(_MAX_SCATTERED, matching, key=self._order)
        spans = [(at[-1] - at[0], index) for index in near if (at := match_positions(query, folded[index]))]
        return [index for span, index in sorted(spans) if span < _MAX_SPREAD * len(query)]

    def _order(self, index: int) -> tuple[int, str]:
        return len(self._folded[index]), self._folded[index]


def match_positions(query: str, name: str) -> tuple[int, ...]:
    """Return the indices of a name to highlight for a query: adjacent if possible, and as far right as possible."""
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
