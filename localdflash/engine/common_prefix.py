"""How much two sequences share, which every cache here asks."""

from collections.abc import Sequence


def count_common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of leading ids that agree."""
    low, high = 0, min(len(a), len(b))
    a, b = list(a[:high]), list(b[:high])
    while low < high:  # by bisection: comparing slices runs in C
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def begins_with(ids: tuple[int, ...], head: tuple[int, ...]) -> bool:
    """Return whether `ids` begins with all of `head`; a sequence that does not is usually ruled out by one id."""
    return len(head) <= len(ids) and ids[len(head) - 1 : len(head)] == head[-1:] and ids[: len(head)] == head
