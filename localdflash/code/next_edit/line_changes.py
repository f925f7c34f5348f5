"""Changes of whole lines: the edit of a document that makes one, and the diff of two texts."""

from collections.abc import Sequence
from typing import NamedTuple

from localdflash.code.next_edit.source import difference
from localdflash.code.next_edit.trail import Position

CONTEXT_LINES = 3  # lines around an edit in its diff

Replacement = tuple[Position, Position, str]  # start and end of replaced text, and the new text


class LineChange(NamedTuple):
    """Replacement of the lines from `start` to before `end` by `lines`, which have no line ends.

    A change never removes all lines: the empty text is one empty line.
    """

    start: int
    end: int
    lines: tuple[str, ...]

    def range_in(self, lines: Sequence[str]) -> Replacement:
        """Return start and end of the replaced text in a document, and the new text, minimal if it is one line."""
        text, last = "\n".join(self.lines), self.end - 1
        if self.start < self.end and self.lines:
            change = difference(lines[last], text) if len(self.lines) == self.end - self.start == 1 else None
            if change:
                return (last, change.start), (last, change.old_end), text[change.start : change.new_end]
            return (self.start, 0), (last, len(lines[last])), text
        if not self.lines and self.end < len(lines):
            return (self.start, 0), (self.end, 0), ""
        if not self.start:
            return (0, 0), (0, 0), f"{text}\n"
        before = (self.start - 1, len(lines[self.start - 1]))
        return before, (last, len(lines[last])), f"\n{text}" if self.lines else ""


def diff_of(before: str, after: str) -> str:
    """Return the difference of two texts as one hunk of a unified diff."""
    old, new = before.split("\n"), after.split("\n")
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    tail = next((at for at in range(shorter - head) if old[-1 - at] != new[-1 - at]), shorter - head)
    start = max(head - CONTEXT_LINES, 0)
    rest = old[len(old) - tail :][:CONTEXT_LINES]
    old_lines, new_lines = old[head : len(old) - tail], new[head : len(new) - tail]
    common = head - start + len(rest)
    hunk = [f"@@ -{start + 1},{common + len(old_lines)} +{start + 1},{common + len(new_lines)} @@"]
    hunk += [f" {line}" for line in old[start:head]] + [f"-{line}" for line in old_lines]
    return "\n".join([*hunk, *(f"+{line}" for line in new_lines), *(f" {line}" for line in rest)]) + "\n"
