"""A conversation: its messages, its continuation, and their storage. Another answer or an edit makes another branch."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.chat.acceptance import Acceptance
from localdflash.chat.messages import Attachment, Message, StepRecord
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.chat.saving import Chat, Saver

if TYPE_CHECKING:
    from localdflash.chat.answerer import Answerer
    from localdflash.chat.store import ChatStore

SAVE_SECONDS = 2.0  # between two saves of a growing answer: a killed process loses no more
SAVE_SHARE = 20  # saving takes at most 1/20 of the time, so that long answers are saved less often

Show = Callable[[str, StepRecord | None], None]


class Talk:
    """Conversation: one chat at a time, stored in the file `chats`, or in memory without one; see `Saver`."""

    def __init__(
        self,
        answerer: "Answerer",
        chats: Path | None,
        folder: str,
        tell: Callable[[str], None],
        *,
        in_memory: bool = True,
    ) -> None:
        self.answerer, self.folder = answerer, folder
        self.settings = ChatSettings()
        self.project = ""  # the project's instructions, where they go along
        self._chat, self._saver = Chat(), Saver(chats, folder, tell, in_memory=in_memory)
        self.run_in_store = self._saver.run_in_store
        self.left_out = 0  # leading messages that no longer go to the model: the context is full
        self.summary = ""  # what goes to the model instead of them
        self.trouble: LocaldflashError | None = None  # why the last answer is "gone"
        self.used: int | None = None  # tokens of the context that the messages take, where that is known
        self.speed = Acceptance()  # of the answer under way, or the last one
        self._reading: asyncio.Task[None] | None = None
        self._growing: _GrowingAnswer | None = None
        self._answering, self._closed = asyncio.Lock(), False

    @property
    def messages(self) -> list[Message]:
        """Return the messages of the shown branch, oldest first."""
        return self._chat.messages

    @property
    def session(self) -> int | None:
        """Return the number of the chat, None before it is stored."""
        return self._chat.session

    @property
    def system(self) -> str:
        """Return the chat's instructions."""
        return self._chat.system

    @system.setter
    def system(self, text: str) -> None:
        self._chat.system = text

    @property
    def before(self) -> str:
        """Return all instructions: the project's, the chat's, and a summary of messages that are left out."""
        summary = f"Summary of the conversation up to here:\n\n{self.summary}" if self.summary else ""
        return "\n\n".join(filter(None, (self.project, self.system, summary)))

    @property
    def answering(self) -> bool:
        """Return whether an answer is in progress or being stored."""
        return self._answering.locked()

    def last_answer(self) -> Message | None:
        """Return the newest answer, complete or not, if there is one."""
        answer = next((message for message in reversed(self.messages) if message.role == "assistant"), None)
        return self._growing.message() if answer and self._growing and self.answering else answer

    async def close(self) -> None:
        """Stop, store all messages, and close the store. May be called again."""
        if not self._closed:
            self._closed = True
            await self.settled()
            await self.save()
            await self._saver.close()

    def new(self) -> None:
        """Start an empty chat with the same instructions."""
        self._chat, self.left_out, self.summary, self.used = Chat(system=self.system), 0, "", None

    async def open(self, session: int) -> None:
        """Open a stored chat."""
        info = await self.run_in_store(lambda store: store.info(session))
        self._show(await self.run_in_store(lambda store: store.path(session)), session, info.system)
        self.left_out, self.summary, self.used = 0, "", None

    def _show(self, path: list[Message], session: int, system: str) -> None:
        """Show a stored chat; an unfinished answer, left by a killed process, was cancelled."""
        unfinished = [message.role == "assistant" and not message.finish for message in path]
        messages = [replace(one, finish="cancelled") if cut else one for one, cut in zip(path, unfinished, strict=True)]
        self._chat = Chat(messages, session, system, stored={message.id: message for message in messages})

    async def delete(self, session: int) -> None:
        """Delete a chat; if it is shown, start a new one."""
        if session == self.session:
            await self.settled()
        await self.run_in_store(lambda store: store.delete(session))
        self._saver.forget(session)
        if session == self.session:
            self.new()

    def say(self, text: str, attachments: Sequence[Attachment] = ()) -> Message:
        """Append a user message."""
        self.messages.append(Message("user", text, tuple(attachments)))
        return self.messages[-1]

    def take_back_answer(self) -> None:
        """Remove the messages after the last user message, to answer it again. UsageError if there is none."""
        del self.messages[self._last_question() + 1 :]

    def take_back_question(self) -> Message:
        """Remove the last user message and all after it; return it. UsageError if there is none."""
        question = self.messages[self._last_question()]
        del self.messages[self._last_question() :]
        self.left_out = min(self.left_out, len(self.messages))
        return question

    def _last_question(self) -> int:
        last = max((i for i, message in enumerate(self.messages) if message.role == "user"), default=None)
        if last is None:
            raise UsageError("nothing was asked yet")
        return last

    async def set_instructions(self, system: str) -> None:
        """Set the instructions, from the next answer on."""
        self.system, session = system, self.session
        if session is not None:
            await self.run_in_store(lambda store: store.set_system(session, system))

    async def version(self, step: int) -> bool:
        """Show the previous (-1) or next (+1) version of the newest message with several; return False at the end."""
        await self.save()
        session, stored = self.session, [message.id for message in reversed(self.messages) if message.id]
        if session is None:
            return False

        def turn(store: "ChatStore") -> list[Message] | None:
            for message in stored:
                versions = store.versions(message)
                if len(versions) > 1:
                    place = versions.index(message) + step
                    if not 0 <= place < len(versions):
                        return None
                    store.set_head(session, store.leaf(versions[place]))
                    return store.path(session)
            return None

        path = await self.run_in_store(turn)
        if path is not None:
            self._show(path, session, self.system)
            self.left_out, self.used = min(self.left_out, len(self.messages) - 1), None
        return path is not None

    async def fork(self, number: int | None) -> None:
        """Continue in a new chat with the messages up to and including `number` (from 1); None means all."""
        await self.save()
        session = self.session
        if session is None:
            raise UsageError("there is nothing to fork yet")
        last = len(self.messages) if number is None else number
        if not 1 <= last <= len(self.messages):
            raise UsageError(f"there is no message {number}: this chat has {len(self.messages)}")
        await self.open(await self.run_in_store(lambda store: store.fork(session, self.messages[last - 1].id)))

    async def answer(self, show: Show, begun_anew: Callable[[], None], *, goes_on: bool = False) -> Message:
        """Answer the last message, or continue the last answer, which joins the messages however it ends."""
        async with self._answering:
            chat, place = self._chat, len(self.messages) - goes_on
            begun = chat.messages.pop() if goes_on else Message("assistant", "")
            growing = self._growing = _GrowingAnswer(begun, chat, place)
            sent = [*chat.messages[self.left_out :], *([begun] if goes_on else [])]
            chat.messages.append(begun)
            try:
                self._reading = asyncio.create_task(self._read(sent, growing, show, begun_anew, goes_on))
                await self._reading
            except asyncio.CancelledError:
                growing.finish, growing.numbers = "cancelled", self._numbers()
                task = asyncio.current_task()
                if task and task.cancelling():
                    raise
            except BaseException:
                if growing.text == begun.text:  # it did not begin: the chat is as it was
                    if not goes_on:
                        del chat.messages[place]
                    raise
                growing.finish, growing.numbers = "gone", self._numbers()
                raise
            finally:
                self._reading = None
                growing.join()
                await self.save(chat)
            return chat.messages[place]

    async def count(self) -> None:
        """Count the context tokens of the messages, unless an answer reports them meanwhile."""
        if not self.messages or self.answering:
            return
        counted, sent = list(self.messages), self.messages[self.left_out :]
        used = await self.answerer.count(sent, system=self.before, settings=self.settings)
        if not self.answering and self.messages == counted:
            self.used = used

    def stop(self) -> None:
        """Stop an answer in progress; its text so far stays."""
        if self._reading:
            self._reading.cancel()

    async def settled(self) -> None:
        """Stop, and wait until the partial answer has joined the messages."""
        self.stop()
        async with self._answering:
            pass

    async def _read(
        self,
        sent: Sequence[Message],
        growing: "_GrowingAnswer",
        show: Show,
        begun_anew: Callable[[], None],
        goes_on: bool,
    ) -> None:
        from localdflash.chat.answerer import AnswerPiece, Done

        await self.save(growing.chat)
        saved, pause = time.monotonic(), SAVE_SECONDS
        self.speed = Acceptance()
        events = self.answerer.answer(sent, self.settings, system=self.before, goes_on=goes_on)
        async with aclosing(events) as pieces:
            async for piece in pieces:
                match piece:
                    case AnswerPiece(text, step):
                        growing.add(text, step)
                        self.speed.add(step, text)
                        show(text, step)
                    case Done(finish, numbers, error):
                        growing.finish, growing.numbers, self.trouble = finish, numbers, error
                        prompt, tokens = numbers.get("prompt_tokens"), numbers.get("tokens")
                        self.used = prompt + tokens if prompt is not None and tokens is not None else None
                    case _:
                        growing.begin_anew()
                        begun_anew()
                if time.monotonic() - saved > pause:
                    began = time.monotonic()
                    growing.join()
                    await self.save(growing.chat)
                    saved = time.monotonic()
                    pause = max(SAVE_SECONDS, SAVE_SHARE * (saved - began))

    def _numbers(self) -> dict[str, Any]:
        """Return the statistics of an incomplete answer."""
        about = self.answerer.about
        return {**({"model": about.pair} if about else {}), **self.speed.numbers()}

    async def save(self, chat: Chat | None = None) -> None:
        """Store unsaved messages of this chat or of the given one. A failure is reported once."""
        chat = chat or self._chat
        if self.answerer.about:
            chat.model = self.answerer.about.pair
        await self._saver.save(chat)


class _GrowingAnswer:
    """Answer in progress, at its position in a chat."""

    def __init__(self, begun: Message, chat: Chat, place: int) -> None:
        self.chat, self._begun, self._place = chat, begun, place
        self._parts, self._steps = [begun.text], list(begun.steps)
        self.finish, self.numbers = begun.finish, begun.numbers

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def add(self, text: str, step: StepRecord | None) -> None:
        self._parts.append(text)
        if step:
            self._steps.append(step)

    def begin_anew(self) -> None:
        self._parts, self._steps = [self._begun.text], list(self._begun.steps)

    def join(self) -> None:
        """Put the answer, complete or not, into the chat."""
        if self._place < len(self.chat.messages):
            self.chat.messages[self._place] = self.message()

    def message(self) -> Message:
        here = self.chat.messages[self._place : self._place + 1]
        return replace(
            self._begun,
            text=self.text,
            finish=self.finish,
            numbers=dict(self.numbers),
            steps=tuple(self._steps),
            id=here[0].id if here else self._begun.id,
        )
