"""Commands that start, open, rename, fork, export and delete chats."""

import asyncio
import os

from textual import on

from localdflash.base.errors import UsageError
from localdflash.chat.chat_listing import SessionInfo
from localdflash.chat.store import ChatStore
from localdflash.text.sanitize import printable
from localdflash.tui.app_base import ChatAppBase, in_background
from localdflash.tui.transcript import Transcript


class ChatActions(ChatAppBase):
    """Mixin with the commands that start, open, rename, fork, export and delete chats."""

    @in_background
    async def action_new(self) -> None:
        """Start a new chat."""
        await self.talk.stop_and_wait()
        self.talk.start_new_chat()
        self.show_chat()
        self.prompt.focus()

    @in_background
    async def action_chats(self, words: str = "") -> None:
        """Let the user choose an earlier chat."""
        from localdflash.tui.screens.chats_screen import ChatPicker

        await self.talk.save()

        async def search(typed: str) -> list[SessionInfo]:
            return await self.talk.run_in_store(ChatStore.sessions, typed)

        while choice := await self.push_screen_wait(ChatPicker(search, words)):
            words = choice.words
            match choice.action:
                case "open":
                    await self.open_chat(choice.id)
                    return
                case "rename":
                    await self._rename(choice.id)
                case "delete":
                    await self._confirm_delete(choice.id)
                case "export":
                    await self._export_chat(choice.id)

    async def open_chat(self, chat_id: int) -> None:
        """Show an earlier chat and continue it."""
        async with self.loading_chat():
            await self.talk.stop_and_wait()
            await self.talk.save()
            await self.talk.open(chat_id)
            self.show_chat()
        self.prompt.focus()

    @in_background
    async def action_rename(self, name: str = "") -> None:
        """Give this chat a name."""
        if self.talk.chat_id is None:
            problem = "not saved; /export keeps it" if self.talk.messages else "empty: there is nothing to name yet"
            self.show_error(f"this chat is {problem}")
            return
        if await self._rename(self.talk.chat_id, name):
            info = await self.talk.run_in_store(ChatStore.info, self.talk.chat_id)  # a long name is shortened
            self.say(f"this chat is now called {info.title}")

    async def _rename(self, chat_id: int, name: str = "") -> bool:
        """Rename a chat, asking for a missing name; return whether it was renamed."""
        from localdflash.tui.screens.questions import TextDialog

        if not name:
            info = await self.talk.run_in_store(ChatStore.info, chat_id)
            name = await self.show_dialog(TextDialog("Name of this chat", info.title)) or ""
        if name := name.strip():
            await self.talk.run_in_store(ChatStore.rename, chat_id, name)
        return bool(name)

    @in_background
    async def action_fork(self, number: str = "") -> None:
        """Start a new chat that continues from message N."""
        if number and not (number.isdecimal() and number.isascii()):
            raise UsageError(f"expected the number of a message, got {printable(number[:40])!r}")
        async with self.loading_chat():
            await self.talk.fork(int(number[:9]) if number else None)
            self.show_chat()
        self.prompt.focus()
        self.say("new chat that continues from here; the previous chat is kept")

    @in_background
    async def action_export(self, path: str = "") -> None:
        """Write this chat to a file."""
        await self.talk.save()
        if not self.talk.messages:
            self.show_error("this chat is empty: there is nothing to write")
            return
        await self._export_chat(self.talk.chat_id, path)

    async def _export_chat(self, chat_id: int | None, path: str = "") -> None:
        """Write a stored chat, or the shown one if `chat_id` is None, asking for a missing path."""
        from localdflash.chat.chat_export import export_json, export_markdown, write_export
        from localdflash.tui.screens.questions import TextDialog

        if chat_id is None or chat_id == self.talk.chat_id:
            info, messages = await self.talk.info(), self.talk.messages  # these may not be saved yet
        else:
            info = await self.talk.run_in_store(ChatStore.info, chat_id)
            messages = await self.talk.run_in_store(ChatStore.branch, chat_id)
        if not path:
            proposed = str(self.start.folder / (f"chat-{chat_id}.md" if chat_id else "chat.md"))
            path = await self.show_dialog(TextDialog("Write this chat to (.md or .json)", proposed)) or ""
        if not path.strip():
            return
        file = self.start.folder / os.path.expanduser(path.strip())
        if file.suffix not in (".md", ".json"):
            self.show_error(f"{file}: the name must end in .md or .json")
            return
        write = export_json if file.suffix == ".json" else export_markdown
        text = write(info, messages)
        lines = [f"{file} exists already."]
        if (overwrite := file.exists()) and not await self.confirm("Replace the file?", lines, "Replace"):
            return
        await asyncio.to_thread(write_export, file, text, overwrite=overwrite)
        self.say(f"written to {file}")

    @in_background
    async def action_delete(self) -> None:
        """Delete this chat."""
        if self.talk.chat_id is None:
            await self.talk.stop_and_wait()  # stores the chat, if its first answer has begun
        if self.talk.chat_id is None:
            self.action_new()
            return
        await self._confirm_delete(self.talk.chat_id)

    async def _confirm_delete(self, chat_id: int) -> None:
        info = await self.talk.run_in_store(ChatStore.info, chat_id)
        lines = [f"{info.title}, {info.messages} messages. It cannot be brought back."]
        if not await self.confirm("Delete this chat?", lines, "Delete"):
            return
        is_shown = chat_id == self.talk.chat_id
        error = await self.talk.delete(chat_id)
        if is_shown:
            self.show_chat()
        if error:
            self.show_error(f"deleted, but not erased from the file {error}")
        else:
            self.say("deleted")

    @on(Transcript.ActionRequest)
    def _run_requested(self, event: Transcript.ActionRequest) -> None:
        """Run the action of a key pressed on a message."""
        number = event.index + 1
        if event.action == "fork":
            self.action_fork(str(number))
        elif any(message.role == "user" for message in self.talk.messages[number:]):
            self.transcript.expect_note()
            self.show_error(f"message {number}: only the last message can be edited or retried; f forks the chat there")
        else:
            self.run_worker(self.run_action(event.action))
