"""A priority queue whose entries can be changed or removed."""

import heapq
import itertools


class PriorityQueue:
    """Pop items in order of their priority, the lowest number first."""

    def __init__(self, items=()):
        """Fill the queue from an iterable of ``(item, priority)`` pairs."""
        self._heap = []
        self._entries = {}
        self._counter = itertools.count()
        for item, priority in items:
            self.push(item, priority)

    def push(self, item, priority):
        """Add ``item`` or change its priority if it is already in the queue. Items
        of equal priority leave the queue in the order in which they came.
        """
        if item in self._entries:
            self.remove(item)
        entry = [priority, next(self._counter), item, True]
        self._entries[item] = entry
        heapq.heappush(self._heap, entry)

    def remove(self, item):
        """Take ``item`` out of the queue wherever it is and return its priority."""
        entry = self._entries.pop(item, None)
        if entry is None:
            raise KeyError(item)
        entry[3] = False
        return entry[0]

    def pop(self):
        """Remove and return the item with the lowest priority number."""
        while self._heap:
            priority, _, item, is_valid = heapq.heappop(self._heap)
            if is_valid:
                del self._entries[item]
                return item
        raise IndexError("pop from an empty priority queue")

    def peek(self):
        """Return the next item without removing it."""
        while self._heap and not self._heap[0][3]:
            heapq.heappop(self._heap)
        if not self._heap:
            raise IndexError("the priority queue is empty")
        return self._heap[0][2]

    def __len__(self):
        return len(self._entries)

    def __bool__(self):
        return bool(self._entries)
