"""A buffer of fixed size that overwrites its oldest values."""


class RingBuffer:
    """Keep the last ``capacity`` values that were appended."""

    def __init__(self, capacity):
        """Create an empty buffer with room for ``capacity`` values."""
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self._slots = [None] * capacity
        self._start = 0
        self._size = 0

    @property
    def capacity(self):
        return len(self._slots)

    def append(self, value):
        """Add a value at the end. If the buffer is full, the oldest value is lost
        and returned.
        """
        end = (self._start + self._size) % self.capacity
        lost = None
        if self._size == self.capacity:
            lost = self._slots[self._start]
            self._start = (self._start + 1) % self.capacity
        else:
            self._size += 1
        self._slots[end] = value
        return lost

    def popleft(self):
        """Remove and return the oldest value."""
        if self._size == 0:
            raise IndexError("the buffer is empty")
        value = self._slots[self._start]
        self._slots[self._start] = None
        self._start = (self._start + 1) % self.capacity
        self._size -= 1
        return value

    def __getitem__(self, index):
        """Return a value by its age: 0 is the oldest and -1 the newest."""
        if index < 0:
            index += self._size
        if not 0 <= index < self._size:
            raise IndexError("index out of range")
        return self._slots[(self._start + index) % self.capacity]

    def __iter__(self):
        for index in range(self._size):
            yield self[index]

    def __len__(self):
        return self._size

    def resize(self, capacity):
        """Change the capacity and keep as many of the newest values as fit."""
        values = list(self)[-capacity:]
        self._slots = values + [None] * (capacity - len(values))
        self._start = 0
        self._size = len(values)

    def __repr__(self):
        return f"{type(self).__name__}({list(self)!r}, capacity={self.capacity})"
