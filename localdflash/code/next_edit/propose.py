"""Propose the next edit of a document after its latest edits, by the first of four rules that finds an edit."""

from collections.abc import Sequence
from functools import lru_cache, partial

from localdflash.code.next_edit.arguments import next_argument
from localdflash.code.next_edit.like_edits import next_like_edit
from localdflash.code.next_edit.renames import RenameRun, start_rename
from localdflash.code.next_edit.repetitions import next_repetition
from localdflash.code.next_edit.source import Change, EditProposal, ParsedSource, difference

MAX_CHANGE_BYTES = 400  # old and new together; larger edits get no proposal
MAX_PARSED_TEXTS = 4  # cached


class Proposer:
    """Proposer for one document. Keeps parsed texts and the rename in progress."""

    def __init__(self, language: str) -> None:
        self._source = lru_cache(MAX_PARSED_TEXTS)(partial(ParsedSource, language))
        self._rename_run: RenameRun | None = None

    def propose(self, steps: Sequence[str]) -> tuple[EditProposal, ParsedSource] | None:
        """Return the next edit and the text it applies to, or None. `steps`: the texts between edits, oldest first."""
        if not steps or not (after := self._source(steps[-1])).is_valid:
            return None
        valid = (source for text in reversed(steps[:-1]) if (source := self._source(text)).is_valid)
        before = next(valid, None)
        change = difference(before.bytes, after.bytes) if before else None
        if before is None or change is None or change.old_end + change.new_end - 2 * change.start > MAX_CHANGE_BYTES:
            return None
        proposal = self._propose_rename(before, after, change) or next_argument(before, after, change)
        if proposal is None:
            earlier = next(valid, None)
            last = difference(earlier.bytes, before.bytes) if earlier else None
            previous = (earlier, last) if earlier and last else None
            proposal = next_repetition(before, after, change, previous)
            if proposal is None and self._rename_run is None:  # a rename in progress already knows all its sites
                proposal = next_like_edit(before, after, change, previous)
        return (proposal, after) if proposal else None

    def _propose_rename(self, before: ParsedSource, after: ParsedSource, change: Change) -> EditProposal | None:
        if self._rename_run is None or not self._rename_run.follow(before, after, change):
            self._rename_run = start_rename(before, after, change)
        return self._rename_run.proposal(after, change) if self._rename_run else None
