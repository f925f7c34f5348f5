"""Find the file changes that an answer proposes, and refuse ambiguous changes. Nothing is written here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localdflash.base.errors import UsageError
from localdflash.chat import patches
from localdflash.chat.answer_blocks import AnswerBlock, Fence, SearchReplace, find_blocks, fits_language, language
from localdflash.chat.confined import MAX_FILE_BYTES, WorkspaceFolder
from localdflash.chat.file_text import FileText, ShownHunk, Splice, make_hunks
from localdflash.chat.patches import NOTHING, FilePatch
from localdflash.chat.rewriting import find_rewrite
from localdflash.code.context.files import clean_name

ProposalKind = Literal["change", "new", "delete"]


@dataclass(frozen=True, slots=True)
class FileProposal:
    """Proposed change of a file: content before and after (None: no file). `problem`: why it cannot be applied."""

    path: str
    before: bytes | None
    after: bytes | None
    kind: ProposalKind = "change"
    hunks: tuple[ShownHunk, ...] = ()
    problem: str = ""


def propose(answer: str, root: Path, attached: Sequence[str] = ()) -> list[FileProposal]:
    """Return the changes that an answer proposes below `root`. `attached`: files that the question attaches."""
    edits = _FileEdits(WorkspaceFolder(root), attached)
    for block in find_blocks(answer):
        edits.apply(block)
    return edits.proposals()


class _FileEdits:
    """Contents of the files before the answer, and after the blocks applied so far."""

    def __init__(self, folder: WorkspaceFolder, attached: Sequence[str]) -> None:
        self._folder = folder
        self._attached = attached[0] if len(set(attached)) == 1 else ""
        self._before: dict[str, bytes | None] = {}
        self._after: dict[str, bytes | None] = {}
        self._problems: list[FileProposal] = []

    def apply(self, block: AnswerBlock) -> None:
        """Apply a block to the file that it names, else to the only attached file; record why that is impossible."""
        name = _file_name(block) or self._only_attachment(block)
        if not name and isinstance(block, Fence):
            return  # example code, not a change
        try:
            if not name:
                raise UsageError("names no file")
            self._change(name, block)
        except UsageError as error:
            if _file_name(block) or not isinstance(block, Fence) or language(block.info):
                self._problems.append(FileProposal(clean_name(name) or "?", None, None, problem=str(error)))

    def proposals(self) -> list[FileProposal]:
        """Return the proposals that can be applied, then the proposals that cannot."""
        changed = [path for path, after in self._after.items() if after != self._before[path]]
        return [_make_proposal(path, self._before[path], self._after[path]) for path in changed] + self._problems

    def _only_attachment(self, block: AnswerBlock) -> str:
        """Return the path of the only attached file if the block's language fits, else ""."""
        if isinstance(block, Fence) and language(block.info) and not fits_language(block.info, self._attached):
            return ""
        return self._attached

    def _change(self, name: str, block: AnswerBlock) -> None:
        path = self._folder.check(name)
        if path not in self._before:
            file = self._folder.read(path)
            self._before[path] = file.data if file else None
        before = self._after.get(path, self._before[path])
        after = _apply_block(path, before, block)
        if after == before:
            raise UsageError("already has this content")
        if after is not None and len(after) > MAX_FILE_BYTES:
            raise UsageError("would be larger than 1 MB")
        self._after[path] = after


def _file_name(block: AnswerBlock) -> str:
    if not isinstance(block, FilePatch):
        return block.name
    return block.new if block.new != NOTHING else block.old


def _apply_block(path: str, before: bytes | None, block: AnswerBlock) -> bytes | None:
    """Return the file's content after a block; UsageError if the block cannot be applied, or is ambiguous."""
    text = FileText.read(before or b"")
    if isinstance(block, FilePatch):
        return _apply_patch(before, text, block)
    if isinstance(block, SearchReplace):
        return _apply_search_replace(before, text, block)
    if not block.closed:
        raise UsageError("is cut short: the answer ends inside the code")
    code = block.lines
    if block.labelled and code[0] not in text.lines[:1]:
        code = code[1:]  # leave out the line that names the file
    return text.with_splices(find_rewrite(path, text.lines, code))


def _apply_patch(before: bytes | None, text: FileText, patch: FilePatch) -> bytes | None:
    if patch.problem:
        raise UsageError(patch.problem)
    if patch.old != patch.new and NOTHING not in (patch.old, patch.new):
        raise UsageError("would be renamed, which is not supported")
    adds_only = all(not hunk.old for hunk in patch.hunks)
    if patch.old == NOTHING and before:
        raise UsageError("would be created, but exists already")
    if before is None and not adds_only:
        raise UsageError("does not exist")
    splices, final_newline = patches.find_splices(text, patch.hunks)
    after = text.with_splices(splices, final_newline)
    if patch.new != NOTHING:
        return after
    if before is None or after.removeprefix(b"\xef\xbb\xbf"):
        raise UsageError("would be deleted, but the diff does not remove all lines")
    return None


def _apply_search_replace(before: bytes | None, text: FileText, block: SearchReplace) -> bytes:
    if block.problem:
        raise UsageError(block.problem)
    if before is None and block.search:
        raise UsageError("does not exist")
    start = patches.find_lines(text.lines, block.search)
    return text.with_splices([Splice(start, start + len(block.search), block.replace)])


def _make_proposal(path: str, before: bytes | None, after: bytes | None) -> FileProposal:
    kind: ProposalKind = "new" if before is None else "delete" if after is None else "change"
    return FileProposal(path, before, after, kind, make_hunks(before, after))
