"""Statistics of a stream of numbers that is too long to keep."""

import math
import random


class RunningStats:
    """The count, mean and variance of all numbers seen so far."""

    def __init__(self):
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf

    def add(self, value):
        """Update the statistics with one more number."""
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self._squares += delta * (value - self.mean)
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)

    def merge(self, other):
        """Add the statistics of another stream, as if its numbers had been added to
        this one.
        """
        if other.count == 0:
            return
        total = self.count + other.count
        delta = other.mean - self.mean
        self.mean += delta * other.count / total
        self._squares += other._squares + delta ** 2 * self.count * other.count / total
        self.count = total
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    @property
    def variance(self):
        """Return the sample variance, or zero for fewer than two numbers."""
        if self.count < 2:
            return 0.0
        return self._squares / (self.count - 1)


def percentile(values, fraction):
    """Return a percentile of ``values`` with linear interpolation between the two
    closest ranks. The fraction lies between 0 and 1.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    position = fraction * (len(ordered) - 1)
    lower = math.floor(position)
    upper = math.ceil(position)
    weight = position - lower
    return ordered[lower] * (1 - weight) + ordered[upper] * weight


def reservoir_sample(stream, size, rng=random):
    """Choose ``size`` items from a stream of unknown length, all with the same
    probability.
    """
    sample = []
    for index, item in enumerate(stream):
        if index < size:
            sample.append(item)
            continue
        position = rng.randint(0, index)
        if position < size:
            sample[position] = item
    return sample
