"""Your own code: files that go along, changes that an answer proposes, what is copied."""

import asyncio
from typing import TYPE_CHECKING

from textual import on, work

from localdflash import paths
from localdflash.errors import LocaldflashError, UsageError
from localdflash.text.sanitize import sanitize
from localdflash.tui.base import Base
from localdflash.tui.transcript import Transcript

if TYPE_CHECKING:
    from localdflash.chat.applying import Journal


class Code(Base):
    """See the module."""

    _journal: "Journal | None" = None

    def action_attach(self, path: str = "") -> None:
        """Send a file along."""
        self.prompt.attach(path)

    def action_detach(self) -> None:
        """Send nothing along."""
        self.prompt.detach()

    @work
    async def action_diff(self) -> None:
        """See what the last answer would change, and apply it."""
        from localdflash.chat.applying import apply
        from localdflash.chat.proposals import propose
        from localdflash.tui.screens.diff import DiffScreen

        answer = self.talk.last_answer()
        if answer is None:
            self.complain("there is no answer yet")
            return
        found = await asyncio.to_thread(propose, answer.text, self.start.folder, self._mentioned())
        if not found:
            self.say("the last answer changes no file: ask for a diff, or for code under the name of its file")
            return
        journal = await self.journal()
        await self.push_screen_wait(DiffScreen(found, lambda chosen: apply(chosen, journal)))

    def _mentioned(self) -> list[str]:
        """The files that went along with the last question."""
        question = next((message for message in reversed(self.talk.messages) if message.role == "user"), None)
        attached = question.attachments if question else ()
        # A part of a file is called path:part.
        return [one.name.rpartition(":")[0] or one.name for one in attached if one.kind != "paste"]

    async def journal(self) -> "Journal":
        """What was applied to this folder, to be taken back."""
        from localdflash.chat.applying import Journal

        folder = paths.data_folder() / "undo" if self.start.chats else None
        journal = self._journal or await asyncio.to_thread(Journal, self.start.folder, folder)
        self._journal = journal
        return journal

    @work
    async def action_undo(self) -> None:
        """Take the last applied change back."""
        from localdflash.chat.applying import undo

        try:
            undone = await asyncio.to_thread(undo, await self.journal())
        except LocaldflashError as error:
            self.complain(str(error))
            return
        if undone is None:
            self.say("there is nothing to take back")
            return
        if undone.restored:
            self.say(f"as before: {', '.join(undone.restored)}")
        for line in undone.left:
            self.complain(line)

    @work
    async def action_copy(self, number: str = "") -> None:
        """Copy the last answer, or a message."""
        messages = self.talk.messages
        try:
            message = messages[_number(number, len(messages), "message") - 1] if number else self.talk.last_answer()
        except UsageError as error:
            self.complain(str(error))
            return
        if message is None:
            self.complain("there is no answer yet")
            return
        await self.copy_text(message.text, "the answer" if message.role == "assistant" else "the message")

    @work
    async def action_code(self, number: str = "") -> None:
        """Copy a code block of the last answer."""
        blocks = self.transcript.code_blocks()
        if not blocks:
            self.complain("the last answer has no code block")
            return
        try:
            chosen = _number(number, len(blocks), "code block") if number else len(blocks)
        except UsageError as error:
            self.complain(str(error))
            return
        await self.copy_text(blocks[chosen - 1], f"code block {chosen}")

    @on(Transcript.Copied)
    async def _copied(self, event: Transcript.Copied) -> None:
        await self.copy_text(event.text, event.what)

    async def copy_text(self, text: str, what: str) -> None:
        """Copy, and say what could be done."""
        from localdflash.tui.clipboard import copy

        self.notify(sanitize((await copy(self, text)).line(what)), markup=False)


def _number(text: str, last: int, what: str) -> int:
    if not (text.isdecimal() and text.isascii() and 1 <= int(text[:9]) <= last):
        raise UsageError(f"there is no {what} {text}: 1 to {last}" if last else f"there is no {what} yet")
    return int(text)
