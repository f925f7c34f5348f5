"""A mapping that forgets its entries after a while."""

import time
from collections import OrderedDict


class TTLCache:
    """Keep at most ``maxsize`` values, each for ``ttl`` seconds."""

    def __init__(self, maxsize=128, ttl=60.0, clock=time.monotonic):
        """Create an empty cache that reads the time from ``clock``."""
        if maxsize <= 0:
            raise ValueError("maxsize must be positive")
        self.maxsize = maxsize
        self.ttl = ttl
        self._clock = clock
        self._entries = OrderedDict()

    def get(self, key, default=None):
        """Return the value stored under ``key``, or ``default`` if there is no
        such key or if the value is too old.
        """
        entry = self._entries.get(key)
        if entry is None:
            return default
        value, expires = entry
        if expires <= self._clock():
            del self._entries[key]
            return default
        self._entries.move_to_end(key)
        return value

    def set(self, key, value, ttl=None):
        """Store ``value`` under ``key`` and drop the least recently used entry
        when the cache is full.
        """
        if ttl is None:
            ttl = self.ttl
        self._entries[key] = (value, self._clock() + ttl)
        self._entries.move_to_end(key)
        while len(self._entries) > self.maxsize:
            self._entries.popitem(last=False)

    def purge(self):
        """Remove every expired entry and return how many were removed."""
        now = self._clock()
        expired = [key for key, (_, expires) in self._entries.items() if expires <= now]
        for key in expired:
            del self._entries[key]
        return len(expired)

    def __len__(self):
        return len(self._entries)

    def __contains__(self, key):
        missing = object()
        return self.get(key, missing) is not missing
