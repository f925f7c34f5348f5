"""Conversation: send messages, stream and store answers. Another answer, or an edit, starts a branch of the chat."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localdflash.base.errors import LocaldflashError, StoreError, UsageError
from localdflash.chat.acceptance import Acceptance
from localdflash.chat.chat_listing import SessionInfo, make_title
from localdflash.chat.messages import Attachment, Message, StepRecord
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.chat.saving import Chat, Saver

if TYPE_CHECKING:
    from localdflash.chat.answerer import Answerer
    from localdflash.chat.store import ChatStore

MIN_SAVE_SECONDS = 2.0  # minimum interval of saves of a growing answer; a killed process loses the text since
SAVE_INTERVAL_FACTOR = 20  # a save that takes one second is followed by 20 seconds without one

OnPiece = Callable[[str, StepRecord | None], None]
T = TypeVar("T")


class Talk:
    """Conversation, stored in the database `chats`. If that is None: in memory if `allow_in_memory`, else nowhere.

    See `Saver` for `notify` and `say`.
    """

    def __init__(
        self,
        answerer: "Answerer",
        chats: Path | None,
        folder: str,
        notify: Callable[[str], None],
        say: Callable[[str], None] | None = None,
        *,
        allow_in_memory: bool = True,
    ) -> None:
        self.answerer, self.folder = answerer, folder
        self.settings = ChatSettings()
        self.project = ""  # the project's instructions; "": not sent
        self._chat, self._saver = Chat(), Saver(chats, folder, notify, say, allow_in_memory=allow_in_memory)
        self.run_in_store = self._saver.run_in_store
        self.dropped = 0  # number of leading messages that are not sent, because the context is full
        self.summary = ""  # summary that is sent instead of the dropped messages
        self.error: LocaldflashError | None = (
            None  # reported with the last answer if the daemon was lost before its end
        )
        self.context_tokens: int | None = None  # number of context tokens in use; None: unknown
        self.acceptance = Acceptance()  # statistics of the current or the last answer
        self._reader: asyncio.Task[Any] | None = None
        self._growing: _GrowingAnswer | None = None
        self._answering, self._closed = asyncio.Lock(), False

    @property
    def messages(self) -> list[Message]:
        """Return the messages of the shown branch, oldest first."""
        return self._chat.messages

    @property
    def chat_id(self) -> int | None:
        """Return the id of the chat in the database, None before it is stored."""
        return self._chat.chat_id

    @property
    def system(self) -> str:
        """Return the chat's instructions."""
        return self._chat.system

    @system.setter
    def system(self, text: str) -> None:
        self._chat.system = text

    @property
    def system_prompt(self) -> str:
        """Return the project's instructions, the chat's instructions, and the summary of the dropped messages."""
        summary = f"Summary of the conversation up to here:\n\n{self.summary}" if self.summary else ""
        return "\n\n".join(filter(None, (self.project, self.system, summary)))

    @property
    def has_unsaved_messages(self) -> bool:
        """Return whether messages could not be stored."""
        return bool(self._saver.unsaved)

    @property
    def is_answering(self) -> bool:
        """Return whether an answer is being generated or stored."""
        return self._answering.locked()

    def last_answer(self) -> Message | None:
        """Return the newest answer, complete or not; None if there is none."""
        answer = next((message for message in reversed(self.messages) if message.role == "assistant"), None)
        return self._growing.message() if answer and self._growing else answer

    async def close(self) -> None:
        """Stop the answer, store all messages, and close the store; a second call does nothing."""
        if not self._closed:
            self._closed = True
            await self.stop_and_wait()
            await self.save()
            await self._saver.close()

    def start_new_chat(self) -> None:
        """Start an empty chat with the current chat's instructions."""
        self._chat, self.dropped, self.summary, self.context_tokens = Chat(system=self.system), 0, "", None

    async def open(self, chat_id: int) -> None:
        """Open a stored chat."""
        info = await self.run_in_store(lambda store: store.info(chat_id))
        self._load_branch(await self.run_in_store(lambda store: store.branch(chat_id)), chat_id, info.system)
        self.dropped, self.summary, self.context_tokens = 0, "", None

    def _load_branch(self, branch: list[Message], chat_id: int, system: str) -> None:
        """Show a branch of a stored chat; mark an answer that a killed process left unfinished as cancelled."""
        messages = [replace(m, finish="cancelled") if m.role == "assistant" and not m.finish else m for m in branch]
        self._chat = Chat(messages, chat_id, system, stored={message.id: message for message in messages})

    async def delete(self, chat_id: int) -> StoreError | None:
        """Delete a chat; if this is the shown chat, start a new one. See `ChatStore.delete` for the result."""
        if chat_id == self.chat_id:
            await self.stop_and_wait()
        error = await self.run_in_store(lambda store: store.delete(chat_id))
        self._saver.forget(chat_id)
        if chat_id == self.chat_id:
            self.start_new_chat()
        return error

    async def info(self) -> SessionInfo:
        """Return the list entry of this chat, with id 0 if the chat is not stored."""
        if (chat_id := self.chat_id) is not None:
            return await self.run_in_store(lambda store: store.info(chat_id))
        first, last = self.messages[0], self.messages[-1]
        facts = (make_title(first), self.folder, self._chat.model, self.system, first.created, last.created)
        return SessionInfo(0, *facts, messages=len(self.messages), excerpt="")

    def add_user_message(self, text: str, attachments: Sequence[Attachment] = ()) -> Message:
        """Append a user message without requesting an answer."""
        self.messages.append(Message("user", text, tuple(attachments)))
        return self.messages[-1]

    def remove_answer(self) -> None:
        """Remove the messages after the last user message, to answer it again. UsageError if there is none."""
        del self.messages[self._last_user_message() + 1 :]

    def remove_user_message(self) -> Message:
        """Remove and return the last user message, and remove the messages after it. UsageError if there is none."""
        message = self.messages[self._last_user_message()]
        del self.messages[self._last_user_message() :]
        self.dropped = min(self.dropped, len(self.messages))
        return message

    def _last_user_message(self) -> int:
        last = max((i for i, message in enumerate(self.messages) if message.role == "user"), default=None)
        if last is None:
            raise UsageError("this chat has no message yet")
        return last

    async def set_instructions(self, system: str) -> None:
        """Set the chat's instructions; they apply from the next answer on."""
        self.system, chat_id = system, self.chat_id
        if chat_id is not None:
            await self.run_in_store(lambda store: store.set_system(chat_id, system))

    async def show_version(self, offset: int) -> bool:
        """Show the previous (-1) or next (+1) version of the newest message with several versions; False if none."""
        await self.save()
        chat_id, stored = self.chat_id, [message.id for message in reversed(self.messages) if message.id]
        if chat_id is None:
            return False

        def switch(store: "ChatStore") -> list[Message] | None:
            for message in stored:
                versions = store.versions(message)
                if len(versions) > 1:
                    index = versions.index(message) + offset
                    if not 0 <= index < len(versions):
                        return None
                    store.set_head(chat_id, store.leaf(versions[index]))
                    return store.branch(chat_id)
            return None

        branch = await self.run_in_store(switch)
        if branch is not None:
            self._load_branch(branch, chat_id, self.system)
            self.dropped, self.context_tokens = min(self.dropped, len(self.messages) - 1), None
        return branch is not None

    async def fork(self, number: int | None) -> None:
        """Continue in a new chat with the messages up to and including `number` (from 1); None means all.

        The answer in progress is stopped, unless the number is wrong.
        """
        if number is not None and not 1 <= number <= len(self.messages):
            raise UsageError(f"there is no message {number}: this chat has {len(self.messages)}")
        await self.stop_and_wait()
        await self.save()
        stored = [message.id for message in self.messages[:number] if message.id]
        chat_id = self.chat_id
        if chat_id is None or not stored:
            raise UsageError("there is nothing to fork yet")
        await self.open(await self.run_in_store(lambda store: store.fork(chat_id, stored[-1])))

    async def answer(
        self, on_piece: OnPiece, on_restart: Callable[[], None], *, continue_last: bool = False
    ) -> Message:
        """Answer the last message, or continue the last answer. After an error or a stop, the partial answer is kept.

        `on_restart` is called if the request was repeated, so that the text so far must be discarded.
        """
        async with self._answering:
            chat, index = self._chat, len(self.messages) - continue_last
            initial = chat.messages.pop() if continue_last else Message("assistant", "")
            growing = self._growing = _GrowingAnswer(initial, chat, index)
            sent = [*chat.messages[self.dropped :], *([initial] if continue_last else [])]
            chat.messages.append(initial)
            try:
                self._reader = asyncio.create_task(self._read(sent, growing, on_piece, on_restart, continue_last))
                await self._reader
            except asyncio.CancelledError:
                growing.finish, growing.stats = "cancelled", self._partial_stats()
                self.context_tokens = None
                task = asyncio.current_task()
                if task and task.cancelling():  # the caller's task was cancelled: `stop` cancels only the reader
                    raise
            except BaseException:
                if growing.text == initial.text:  # no text was received: restore the chat
                    if not continue_last:
                        del chat.messages[index]
                    raise
                growing.finish, growing.stats = "gone", self._partial_stats()
                raise
            finally:
                self._reader = None
                self._growing = None
                growing.write_to_chat()  # does nothing if the message was removed above
                await self.save(chat)
            return chat.messages[index]

    async def run_until_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run a coroutine as if it were an answer, and return its result; None if it is stopped."""
        async with self._answering:
            self._reader = task = asyncio.create_task(work)
            try:
                await asyncio.wait([task])
            finally:
                self._reader = None
                task.cancel()
        return None if task.cancelled() else task.result()

    async def count(self) -> None:
        """Count the context tokens of the messages, unless an answer is running: it reports them."""
        if not self.messages or self.is_answering:
            return
        counted, sent = list(self.messages), self.messages[self.dropped :]
        context_tokens = await self.answerer.count(sent, system=self.system_prompt, settings=self.settings)
        if not self.is_answering and self.messages == counted:
            self.context_tokens = context_tokens

    def stop(self) -> None:
        """Stop an answer in progress; its text so far stays."""
        if self._reader:
            self._reader.cancel()

    async def stop_and_wait(self) -> None:
        """Stop the answer, and wait until its text so far is stored."""
        self.stop()
        async with self._answering:
            pass

    async def _read(
        self,
        sent: Sequence[Message],
        growing: "_GrowingAnswer",
        on_piece: OnPiece,
        on_restart: Callable[[], None],
        continue_last: bool,
    ) -> None:
        from localdflash.chat.answerer import AnswerPiece, AnswerRestart, Done

        saved, interval = -math.inf, MIN_SAVE_SECONDS  # save the first piece at once, together with the question
        self.acceptance = Acceptance()
        events = self.answerer.answer(sent, self.settings, system=self.system_prompt, continue_last=continue_last)
        async with aclosing(events) as pieces:
            async for piece in pieces:
                match piece:
                    case AnswerPiece(text, step):
                        growing.add(text, step)
                        self.acceptance.add(step, text)
                        on_piece(text, step)
                    case Done(finish, stats, error):
                        growing.finish, growing.stats, self.error = finish, stats, error
                        prompt, tokens = stats.get("prompt_tokens"), stats.get("tokens")
                        self.context_tokens = prompt + tokens if prompt is not None and tokens is not None else None
                    case AnswerRestart():
                        growing.restart()
                        growing.write_to_chat()
                        on_restart()
                if time.monotonic() - saved > interval:
                    began = time.monotonic()
                    growing.write_to_chat()
                    await self.save(growing.chat)
                    saved = time.monotonic()
                    interval = max(MIN_SAVE_SECONDS, SAVE_INTERVAL_FACTOR * (saved - began))

    def _partial_stats(self) -> dict[str, Any]:
        """Return the statistics of an answer that ended without the server's statistics."""
        info = self.answerer.info
        return {**({"model": info.pair} if info else {}), **self.acceptance.numbers()}

    async def save(self, chat: Chat | None = None) -> None:
        """Store the unsaved messages of `chat` (default: the shown chat). A failure is reported once."""
        chat = chat or self._chat
        if self.answerer.info:
            chat.model = self.answerer.info.pair
        await self._saver.save(chat)


class _GrowingAnswer:
    """Answer in progress, which is message `index` of `chat`."""

    def __init__(self, initial: Message, chat: Chat, index: int) -> None:
        self.chat, self._initial, self._index = chat, initial, index
        self._parts, self._steps = [initial.text], list(initial.steps)
        self.finish, self.stats = initial.finish, initial.numbers

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def add(self, text: str, step: StepRecord | None) -> None:
        self._parts.append(text)
        if step:
            self._steps.append(step)

    def restart(self) -> None:
        self._parts, self._steps = [self._initial.text], list(self._initial.steps)

    def write_to_chat(self) -> None:
        """Replace the message in the chat by the answer so far, unless the message was removed."""
        if self._index < len(self.chat.messages):
            self.chat.messages[self._index] = self.message()

    def message(self) -> Message:
        current = self.chat.messages[self._index : self._index + 1]
        return replace(
            self._initial,
            text=self.text,
            finish=self.finish,
            numbers=dict(self.stats),
            steps=tuple(self._steps),
            id=current[0].id if current else self._initial.id,
        )
