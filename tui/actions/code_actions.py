"""Commands about the user's code: attach files, apply an answer's changes, copy text."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import on

from localdflash.base.errors import UsageError
from localdflash.base.files import paths
from localdflash.text.sanitize import sanitize
from localdflash.tui.app_base import ChatAppBase, in_background
from localdflash.tui.transcript import Transcript

if TYPE_CHECKING:
    from localdflash.chat.applying import Journal


class CodeActions(ChatAppBase):
    """Mixin with the commands that attach files, apply an answer's changes and copy text."""

    _journal: "Journal | None" = None

    @in_background
    async def action_attach(self, path: str = "") -> None:
        """Attach a file to the next message."""
        from localdflash.tui.screens.questions import TextDialog

        if path := path or (await self.show_dialog(TextDialog("File to attach")) or "").strip():
            self.prompt.attach(path)

    def action_detach(self) -> None:
        """Drop all attachments."""
        self.prompt.detach()

    @in_background
    async def action_diff(self) -> None:
        """Show what the last answer would change, and apply it if the user agrees."""
        from localdflash.chat.applying import ApplyResult, apply_proposals
        from localdflash.chat.proposals import FileProposal, propose
        from localdflash.tui.screens.diff_screen import DiffScreen

        answer = self.talk.last_answer()
        if answer is None:
            raise UsageError("this chat has no answer yet")
        proposals = await asyncio.to_thread(propose, answer.text, self.start.folder, self._attached_paths())
        if not proposals:
            self.say("the last answer changes no file; ask for a diff, or for code with the name of its file")
            return
        journal = await self.journal()
        outcomes: list[ApplyResult] = []

        def apply(chosen: Sequence[FileProposal]) -> ApplyResult:
            outcomes.append(apply_proposals(chosen, journal))
            return outcomes[-1]

        await self.push_screen_wait(DiffScreen(proposals, apply))
        for outcome in outcomes:
            if outcome.written:
                self.say(f"changed: {', '.join(one.path for one in outcome.written)}; /undo reverts it")
            for line in filter(None, (outcome.problem, outcome.notice)):
                self.show_error(line)

    def _attached_paths(self) -> list[str]:
        """Return the paths of the files attached to the last question."""
        question = next((message for message in reversed(self.talk.messages) if message.role == "user"), None)
        attached = question.attachments if question else ()
        # A part of a file is named path:part.
        return [one.name.rpartition(":")[0] or one.name for one in attached if one.kind in ("file", "symbol")]

    async def journal(self) -> "Journal":
        """Return the journal of changes applied to this folder, used to undo them."""
        from localdflash.chat.applying import Journal

        folder = paths.data_folder() / "undo" if self.start.chats else None
        if self._journal is None:
            self._journal = await asyncio.to_thread(Journal, self.start.folder, folder)
        return self._journal

    @in_background
    async def action_undo(self) -> None:
        """Undo the last applied change."""
        from localdflash.chat.applying import undo_last
        from localdflash.tui.screens.chats_screen import age

        journal = await self.journal()
        if not (last := journal.last()):
            self.say("there is nothing to undo")
            return
        changed, seconds = last
        lines = [f"Restore {', '.join(changed)} as before the change {age(time.time() - seconds, time.time())}."]
        if not await self.confirm("Undo the change?", lines, "Undo"):
            return
        undone = await asyncio.to_thread(undo_last, journal)
        if undone is None:
            self.say("there is nothing to undo")
            return
        if undone.restored:
            self.say(f"restored: {', '.join(undone.restored)}")
        elif not undone.problems:
            self.say(f"no change to undo, the old content is there already: {', '.join(changed)}")
        for line in undone.problems:
            self.show_error(line)

    @in_background
    async def action_copy(self, number: str = "") -> None:
        """Copy the last answer, or message N."""
        messages = self.talk.messages
        message = messages[_parse_number(number, len(messages), "message") - 1] if number else self.talk.last_answer()
        if message is None:
            raise UsageError("this chat has no answer yet")
        await self.copy_text(message.text, "the answer" if message.role == "assistant" else "the message")

    @in_background
    async def action_code(self, number: str = "") -> None:
        """Copy a code block of the last answer."""
        blocks = self.transcript.code_blocks()
        if not blocks:
            raise UsageError("the last answer has no code block")
        chosen = _parse_number(number, len(blocks), "code block") if number else len(blocks)
        await self.copy_text(blocks[chosen - 1], f"code block {chosen}")

    @on(Transcript.CopyRequest)
    async def _copy_requested(self, event: Transcript.CopyRequest) -> None:
        await self.copy_text(event.text, event.what)

    async def copy_text(self, text: str, what: str) -> None:
        """Copy text and show a toast that says whether the clipboard took it."""
        from localdflash.tui.clipboard import copy

        self.notify(sanitize((await copy(self.copy_to_clipboard, text)).line(what)), markup=False)


def _parse_number(text: str, last: int, what: str) -> int:
    if not (text.isdecimal() and text.isascii() and 1 <= int(text[:9]) <= last):
        raise UsageError(f"there is no {what} {text} (expected 1 to {last})" if last else f"there is no {what} yet")
    return int(text)
