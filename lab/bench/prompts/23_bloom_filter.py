"""A set that may report false members but never misses one."""

import hashlib
import math


class BloomFilter:
    """Remember strings in a fixed amount of memory."""

    def __init__(self, expected_items, error_rate=0.01):
        """Choose the size of the filter so that ``expected_items`` strings lead to
        at most ``error_rate`` wrong answers.
        """
        if not 0 < error_rate < 1:
            raise ValueError("error_rate must be between 0 and 1")
        bits = -expected_items * math.log(error_rate) / math.log(2) ** 2
        self.size = max(8, math.ceil(bits))
        self.hash_count = max(1, round(self.size / expected_items * math.log(2)))
        self._bits = bytearray((self.size + 7) // 8)

    def _positions(self, item):
        """Yield the bit positions of an item, derived from two halves of one hash."""
        digest = hashlib.sha256(item.encode("utf-8")).digest()
        first = int.from_bytes(digest[:8], "little")
        second = int.from_bytes(digest[8:16], "little") | 1
        for index in range(self.hash_count):
            yield (first + index * second) % self.size

    def add(self, item):
        """Insert an item and return True if it was certainly not present before."""
        is_new = False
        for position in self._positions(item):
            byte, bit = divmod(position, 8)
            if not self._bits[byte] & (1 << bit):
                is_new = True
                self._bits[byte] |= 1 << bit
        return is_new

    def __contains__(self, item):
        for position in self._positions(item):
            byte, bit = divmod(position, 8)
            if not self._bits[byte] & (1 << bit):
                return False
        return True

    def fill_ratio(self):
        """Return the fraction of bits that are set."""
        count = 0
        for byte in self._bits:
            count += bin(byte).count("1")
        return count / self.size

    def union(self, other):
        """Return a filter that contains the items of both filters."""
        if (self.size, self.hash_count) != (other.size, other.hash_count):
            raise ValueError("filters have different parameters")
        result = BloomFilter.__new__(BloomFilter)
        result.size = self.size
        result.hash_count = self.hash_count
        result._bits = bytearray(a | b for a, b in zip(self._bits, other._bits))
        return result
