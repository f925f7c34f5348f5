"""Changes of whole lines: the edit that turns a document into another one, and the diff of the two."""

from typing import NamedTuple

from localdflash.code.next_edit.source import difference
from localdflash.code.next_edit.trail import Position
from localdflash.engine.common_prefix import count_common_ends

CONTEXT_LINES = 3  # lines around an edit in its diff
Replacement = tuple[Position, Position, str]  # start and end of replaced text, and the new text


class LineChange(NamedTuple):
    """Replacement of the lines from `start` to before `end` by `lines`, which have no line ends."""

    start: int
    end: int
    lines: tuple[str, ...]


def edit_between(old: str, new: str) -> Replacement:
    """Return the shortest edit that makes one text of another; inserted lines follow the end of the line before."""
    change = difference(old[::-1], new[::-1])  # from the end, so that inserted lines begin with their line feed
    assert change
    start, end = len(old) - change.old_end, len(old) - change.start
    first, last = ((old.count("\n", 0, at), at - old.rfind("\n", 0, at) - 1) for at in (start, end))
    return first, last, new[start : len(new) - change.start]


def diff_of(before: str, after: str) -> str:
    """Return the difference of two texts as one hunk of a unified diff."""
    old, new = before.split("\n"), after.split("\n")
    head, tail = count_common_ends(old, new)
    start = max(head - CONTEXT_LINES, 0)
    rest = old[len(old) - tail :][:CONTEXT_LINES]
    old_lines, new_lines = old[head : len(old) - tail], new[head : len(new) - tail]
    common = head - start + len(rest)
    hunk = [f"@@ -{start + 1},{common + len(old_lines)} +{start + 1},{common + len(new_lines)} @@"]
    hunk += [f" {line}" for line in old[start:head]] + [f"-{line}" for line in old_lines]
    return "\n".join([*hunk, *(f"+{line}" for line in new_lines), *(f" {line}" for line in rest)]) + "\n"
