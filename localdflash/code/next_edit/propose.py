"""Apply the rules in order: what to change next in a document, after its latest edits."""

from collections.abc import Sequence
from functools import lru_cache, partial

from localdflash.code.next_edit.arguments import next_argument
from localdflash.code.next_edit.like_edits import next_like_edit
from localdflash.code.next_edit.renames import RenameRun, begun_rename
from localdflash.code.next_edit.repetitions import next_repetition
from localdflash.code.next_edit.source import Change, EditProposal, ParsedSource, difference

MAX_CHANGE_BYTES = 400  # old and new together
MAX_PARSED_TEXTS = 4


class Proposer:
    """Proposes edits in one document. Keeps the parsed texts and the current rename."""

    def __init__(self, language: str) -> None:
        self._source = lru_cache(MAX_PARSED_TEXTS)(partial(ParsedSource, language))
        self._run: RenameRun | None = None

    def propose(self, steps: Sequence[str]) -> tuple[EditProposal, ParsedSource] | None:
        """Return the next edit and the text that it applies to. `steps` are the latest versions, oldest first."""
        if not steps or not (after := self._source(steps[-1])).sound:
            return None
        sound = (source for text in reversed(steps[:-1]) if (source := self._source(text)).sound)
        before = next(sound, None)
        change = difference(before.bytes, after.bytes) if before else None
        if before is None or change is None or change.old_end + change.new_end - 2 * change.start > MAX_CHANGE_BYTES:
            return None
        found = self._rename(before, after, change) or next_argument(before, after, change)
        if found is None:
            earlier = next(sound, None)
            last = difference(earlier.bytes, before.bytes) if earlier else None
            previous = (earlier, last) if earlier and last else None
            found = next_repetition(before, after, change, previous)
            if found is None and self._run is None:  # the places of a rename are known
                found = next_like_edit(before, after, change, previous)
        return (found, after) if found else None

    def _rename(self, before: ParsedSource, after: ParsedSource, change: Change) -> EditProposal | None:
        if self._run is None or not self._run.follow(before, after, change):
            self._run = begun_rename(before, after, change)
        return self._run.proposal(after, change) if self._run else None
