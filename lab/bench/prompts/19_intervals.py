"""Sets of half-open intervals of numbers."""

import bisect


class IntervalSet:
    """A union of intervals ``[start, end)``, kept sorted and disjoint."""

    def __init__(self, intervals=()):
        """Create the union of the given ``(start, end)`` pairs."""
        self._starts = []
        self._ends = []
        for start, end in intervals:
            self.add(start, end)

    def add(self, start, end):
        """Include an interval and merge it with those that it touches."""
        if end <= start:
            raise ValueError(f"empty interval: [{start}, {end})")
        first = bisect.bisect_left(self._ends, start)
        last = bisect.bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def remove(self, start, end):
        """Exclude an interval, which may split one of the stored ones in two."""
        kept = []
        for left, right in self:
            if left < start:
                kept.append((left, min(right, start)))
            if right > end:
                kept.append((max(left, end), right))
        self._starts = [left for left, _ in kept]
        self._ends = [right for _, right in kept]

    def __contains__(self, point):
        index = bisect.bisect_right(self._starts, point) - 1
        return index >= 0 and point < self._ends[index]

    def __iter__(self):
        return iter(list(zip(self._starts, self._ends)))

    def total(self):
        """Return the sum of the lengths of all intervals."""
        length = 0
        for start, end in self:
            length += end - start
        return length

    def gaps(self, start, end):
        """Yield the parts of ``[start, end)`` that are not covered."""
        position = start
        for left, right in self:
            if right <= position:
                continue
            if left >= end:
                break
            if left > position:
                yield position, left
            position = right
        if position < end:
            yield position, end
