"""Limit how often something may happen."""

import threading
import time
from collections import deque


class TokenBucket:
    """Allow bursts of ``capacity`` calls, refilled at ``rate`` calls a second."""

    def __init__(self, rate, capacity):
        self.rate = float(rate)
        self.capacity = float(capacity)
        self._tokens = self.capacity
        self._updated = time.monotonic()
        self._lock = threading.Lock()

    def _refill(self):
        """Add the tokens that were earned since the last call."""
        now = time.monotonic()
        elapsed = now - self._updated
        self._tokens = min(self.capacity, self._tokens + elapsed * self.rate)
        self._updated = now

    def try_acquire(self, amount=1):
        """Take ``amount`` tokens if they are available and say whether it worked.
        This method never blocks.
        """
        with self._lock:
            self._refill()
            if self._tokens < amount:
                return False
            self._tokens -= amount
            return True

    def acquire(self, amount=1, timeout=None):
        """Wait until ``amount`` tokens are available. Return False if that takes
        longer than ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.try_acquire(amount):
            missing = amount - self._tokens
            delay = max(missing / self.rate, 0.001)
            if deadline is not None and time.monotonic() + delay > deadline:
                return False
            time.sleep(delay)
        return True


class SlidingWindow:
    """Allow ``limit`` events in any period of ``seconds``."""

    def __init__(self, limit, seconds):
        self.limit = limit
        self.seconds = seconds
        self._events = deque()

    def allow(self, now=None):
        """Record an event and return True, or return False if it is one too many."""
        if now is None:
            now = time.monotonic()
        while self._events and self._events[0] <= now - self.seconds:
            self._events.popleft()
        if len(self._events) >= self.limit:
            return False
        self._events.append(now)
        return True
