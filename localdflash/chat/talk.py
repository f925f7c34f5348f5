"""A conversation: what was said, how it goes on, and what of it is on disk.

`messages` is the path that is shown, from the first message to the newest one. Another answer to the same message, or
a message that was changed, is another branch of the same chat: what was there stays in the store. What cannot be
stored stays here and is stored with the next message that can: `unsaved` says that there is something.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from localdflash.chat.acceptance import Acceptance
from localdflash.chat.messages import Attachment, Message, StepRecord
from localdflash.chat.settings import Settings
from localdflash.chat.store import Store
from localdflash.errors import LocaldflashError, StoreFailed, StoreLost, UsageError

if TYPE_CHECKING:
    from localdflash.chat.engine import Engine
    from localdflash.chat.store import Store

SAVE_EVERY = 2.0  # seconds; what an answer that grows loses at most where this process is killed

Show = Callable[[str, StepRecord | None], None]
P = ParamSpec("P")
T = TypeVar("T")


class Talk:
    """One chat at a time, kept in the file `chats`, or nowhere for None.

    `tell` gets a line, on the event loop, when something could not be stored, and when it could be again.
    """

    def __init__(self, engine: "Engine", chats: Path | None, folder: str, tell: Callable[[str], None]) -> None:
        self.engine, self.folder, self._chats, self._tell = engine, folder, chats, tell
        self.settings = Settings()
        self.messages: list[Message] = []
        self.system = ""
        self.session: int | None = None
        self.left_out = 0  # leading messages that no longer go to the model: the context is full
        self.unsaved = False
        self.trouble: LocaldflashError | None = None  # why the last answer is "gone"
        self.used: int | None = None  # tokens of the context that the messages take, where that is known
        self.speed = Acceptance()  # of the answer under way, or the last one
        self._store: Store | None = None
        self._disk = ThreadPoolExecutor(1, "chats")
        self._reading: asyncio.Task[None] | None = None
        self._growing: _Growing | None = None
        self._answering, self._saving = asyncio.Lock(), asyncio.Lock()

    @property
    def answering(self) -> bool:
        """Whether an answer is under way."""
        return self._reading is not None

    def last_answer(self) -> Message | None:
        """The newest answer, if there is one; while it grows, what there is of it."""
        answer = next((message for message in reversed(self.messages) if message.role == "assistant"), None)
        return self._growing.message(answer.id) if answer and self._growing and self.answering else answer

    async def kept(self, work: Callable[Concatenate[Store, P], T], *arguments: P.args, **names: P.kwargs) -> T:
        """Run a method of the store, in its thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._disk, lambda: work(self._opened(loop), *arguments, **names))

    def _opened(self, loop: asyncio.AbstractEventLoop) -> Store:
        """The store; one in memory where that on disk cannot be had."""
        if self._store is None:

            def tell(line: str) -> None:
                loop.call_soon_threadsafe(self._tell, line)

            try:
                self._store = Store.open(self._chats, tell)
            except StoreFailed as error:
                tell(f"chats are not kept: {error}")
                self._store = Store.open(None, tell)
        return self._store

    async def close(self) -> None:
        """Stop, store what there is, and close the store."""
        await self.settled()
        await self.save()
        if self._store:
            await self.kept(Store.close)
        self._disk.shutdown()

    # What was said

    def new(self) -> None:
        """Another chat, empty, with the same instructions."""
        self.messages, self.session, self.left_out, self.used = [], None, 0, None

    async def open(self, session: int) -> None:
        """An earlier chat, as it was left."""
        info = await self.kept(Store.info, session)
        self.messages = await self.kept(Store.path, session)
        self.session, self.system, self.left_out, self.used = session, info.system, 0, None

    def say(self, text: str, attachments: Sequence[Attachment] = ()) -> Message:
        """One more message of the user's."""
        message = Message("user", text, tuple(attachments))
        self.messages.append(message)
        return message

    def take_back_answer(self) -> None:
        """Up to the last message of the user's, to answer it again. UsageError where there is none."""
        del self.messages[self._last_question() + 1 :]

    def take_back_question(self) -> Message:
        """Up to what was before the last message of the user's, which is returned. UsageError where there is none."""
        question = self.messages[self._last_question()]
        del self.messages[self._last_question() :]
        self.left_out = min(self.left_out, len(self.messages))
        return question

    def _last_question(self) -> int:
        for i in reversed(range(len(self.messages))):
            if self.messages[i].role == "user":
                return i
        raise UsageError("nothing was asked yet")

    async def instruct(self, system: str) -> None:
        """Other instructions before the chat, from the next answer on."""
        self.system = system
        if self.session is not None:
            await self.kept(Store.set_system, self.session, system)

    async def version(self, step: int) -> bool:
        """Switch to the version before (-1) or after (+1) of the newest message that has several; False at the end."""
        await self.save()
        for message in reversed(self.messages):
            if self.session is None or not message.id:
                continue
            versions = await self.kept(Store.versions, message.id)
            if len(versions) > 1:
                place = versions.index(message.id) + step
                if not 0 <= place < len(versions):
                    return False
                leaf = await self.kept(Store.leaf, versions[place])
                await self.kept(Store.set_head, self.session, leaf)
                self.messages = await self.kept(Store.path, self.session)
                return True
        return False

    async def fork(self, number: int | None) -> None:
        """Go on in a new chat that has the messages up to and with this one (from 1); all of them for None."""
        await self.save()
        if self.session is None:
            raise UsageError("there is nothing to fork yet")
        last = len(self.messages) if number is None else number
        if not 1 <= last <= len(self.messages):
            raise UsageError(f"there is no message {number}: this chat has {len(self.messages)}")
        await self.open(await self.kept(Store.fork, self.session, self.messages[last - 1].id))

    # What is answered

    async def answer(self, show: Show, begun_anew: Callable[[], None], *, goes_on: bool = False) -> Message:
        """Have the last message answered, or the last answer gone on with; `show` gets the text as it comes.

        The answer joins the messages however it ends: stopped, or as far as it came when the engine went away. What
        kept it from beginning is raised, ContextOverflow among it.
        """
        async with self._answering:
            return await self._answer(show, begun_anew, goes_on)

    async def _answer(self, show: Show, begun_anew: Callable[[], None], goes_on: bool) -> Message:
        begun = self.messages.pop() if goes_on else Message("assistant", "")
        growing = self._growing = _Growing(begun)
        sent = [*self.messages[self.left_out :], *([begun] if goes_on else [])]
        self.messages.append(begun)
        try:
            self._reading = asyncio.create_task(self._read(sent, growing, show, begun_anew, goes_on))
            await self._reading
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            growing.finish, growing.numbers = "cancelled", self.speed.numbers()
        except BaseException:
            if not growing.text and not goes_on:
                self.messages.pop()
                raise
            growing.finish, growing.numbers = "gone", self.speed.numbers()
            raise
        finally:
            self._reading = None
            if self.messages and self.messages[-1].role == "assistant":
                self.messages[-1] = growing.message(self.messages[-1].id)
            await self.save(changed=True)
        return self.messages[-1]

    async def count(self) -> None:
        """Ask the engine what the messages take of the context, where no answer has told."""
        if self.messages and not self.answering:
            sent = self.messages[self.left_out :]
            self.used = await self.engine.count(sent, system=self.system, settings=self.settings)

    def stop(self) -> None:
        """End the answer that is under way, if one is; what there is of it stays."""
        if self._reading:
            self._reading.cancel()

    async def settled(self) -> None:
        """Stop, and wait until what there is of the answer has joined the messages."""
        self.stop()
        async with self._answering:
            pass

    async def _read(
        self, sent: Sequence[Message], growing: "_Growing", show: Show, begun_anew: Callable[[], None], goes_on: bool
    ) -> None:
        from localdflash.chat.engine import Done, Piece

        await self.save()
        saved = time.monotonic()
        self.speed = Acceptance()
        events = self.engine.answer(sent, self.settings, system=self.system, goes_on=goes_on)
        async with aclosing(events) as pieces:
            async for piece in pieces:
                match piece:
                    case Piece(text, step):
                        growing.add(text, step)
                        self.speed.add(step, text)
                        show(text, step)
                    case Done(finish, numbers, error):
                        growing.finish, growing.numbers, self.trouble = finish, numbers, error
                        self.used = _used(numbers)
                    case _:
                        growing.begin_anew()
                        begun_anew()
                if time.monotonic() - saved > SAVE_EVERY:
                    saved = time.monotonic()
                    self.messages[-1] = growing.message(self.messages[-1].id)
                    await self.save(changed=True)

    # What is kept

    async def save(self, *, changed: bool = False) -> None:
        """Store what is not stored yet, in order; with `changed` the last message again. What fails is told once."""
        try:
            async with self._saving:
                try:
                    await self._save(changed)
                except StoreLost as error:  # all of it again, as another chat
                    self._tell(f"{error}; this chat is stored again")
                    self.session = None
                    self.messages[:] = [replace(message, id=0) for message in self.messages]
                    await self._save(changed)
        except StoreFailed as error:
            if not self.unsaved:
                self._tell(f"not saved: {error}; the chat goes on and is saved as soon as that works")
            self.unsaved = True
            return
        if self.unsaved:
            self.unsaved = False
            self._tell("saved again")

    async def _save(self, changed: bool) -> None:
        messages = self.messages
        if not messages:
            return
        if self.session is None:
            about = self.engine.about
            self.session = await self.kept(
                Store.create, folder=self.folder, model=about.pair if about else "", system=self.system
            )
        for i, message in enumerate(messages):
            if not message.id:
                parent = messages[i - 1].id if i else None
                stored = await self.kept(Store.add, self.session, parent, message)
                messages[i] = replace(messages[i], id=stored.id)  # it may have grown meanwhile
        if changed or self.unsaved:
            await self.kept(Store.update, messages[-1])


def _used(numbers: Mapping[str, Any]) -> int | None:
    prompt, tokens = numbers.get("prompt_tokens"), numbers.get("tokens")
    return prompt + tokens if prompt is not None and tokens is not None else None


class _Growing:
    """An answer under way."""

    def __init__(self, begun: Message) -> None:
        self._begun = begun
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

    def message(self, number: int) -> Message:
        return replace(
            self._begun,
            text=self.text,
            finish=self.finish,
            numbers=dict(self.numbers),
            steps=tuple(self._steps),
            id=number,
        )
