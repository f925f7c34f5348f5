"""Common prefixes of sequences of tokens or lines."""

from collections.abc import Sequence


def count_common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Return the number of leading items that two sequences share."""
    low, high = 0, min(len(a), len(b))
    a, b = list(a[:high]), list(b[:high])
    while low < high:  # bisection: slices are compared in C
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def count_common_ends(a: Sequence[object], b: Sequence[object]) -> tuple[int, int]:
    """Return the number of leading items that two sequences share, and that of trailing items after these."""
    head = count_common_prefix(a, b)
    return head, count_common_prefix(a[head:][::-1], b[head:][::-1])


def begins_with(ids: tuple[int, ...], head: tuple[int, ...]) -> bool:
    """Return whether `ids` begins with `head`; comparing the last id of `head` first rules out most sequences."""
    return len(head) <= len(ids) and ids[len(head) - 1 : len(head)] == head[-1:] and ids[: len(head)] == head
