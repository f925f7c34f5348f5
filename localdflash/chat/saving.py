"""Store chats while they grow. Messages that cannot be stored stay in memory, and are stored later."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from localdflash.base.errors import StoreError, StoreLost
from localdflash.chat.messages import Message

if TYPE_CHECKING:
    from localdflash.chat.store import ChatStore

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class Chat:
    """Messages of the shown branch of a chat. `chat_id`: its id in the database, None until a message is stored."""

    messages: list[Message] = field(default_factory=list)
    chat_id: int | None = None
    system: str = ""
    model: str = ""
    stored: dict[int, Message] = field(default_factory=dict)  # messages as they are on disk, by id


class Saver:
    """Writer of chats to the database `path`. If `path` is None: to memory if `allow_in_memory`, else nowhere.

    `notify` receives problems; `say`, by default `notify`, receives the end of a problem.
    """

    def __init__(
        self,
        path: Path | None,
        folder: str,
        notify: Callable[[str], None],
        say: Callable[[str], None] | None = None,
        *,
        allow_in_memory: bool = True,
    ) -> None:
        self._path, self._folder, self._notify, self._say = path, folder, notify, say or notify
        self._is_enabled = path is not None or allow_in_memory
        self._store: ChatStore | None = None
        self._disk = ThreadPoolExecutor(1, "chats")
        self._save_lock = asyncio.Lock()
        self.unsaved: list[Chat] = []  # chats with messages that could not be stored

    async def run_in_store(
        self, work: "Callable[Concatenate[ChatStore, P], T]", *arguments: P.args, **names: P.kwargs
    ) -> T:
        """Run a method of the store in the store's thread, opening the store if necessary."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._disk, lambda: work(self._open_store(loop), *arguments, **names))

    def _open_store(self, loop: asyncio.AbstractEventLoop) -> "ChatStore":
        """Return the store, opened if necessary. StoreError if that fails; the next call tries again."""
        from localdflash.chat.store import ChatStore

        def notify(line: str) -> None:
            loop.call_soon_threadsafe(self._notify, line)

        self._store = self._store or ChatStore(self._path, notify)
        return self._store

    async def close(self) -> None:
        """Close the store."""
        if self._store:
            await self.run_in_store(lambda store: store.close())
        self._disk.shutdown()

    def forget(self, chat_id: int) -> None:
        """Discard the unsaved messages of a deleted chat."""
        self.unsaved = [chat for chat in self.unsaved if chat.chat_id != chat_id]

    async def save(self, chat: Chat) -> None:
        """Store the messages of `chat` and of `unsaved` chats; report a failure once. Cancellation does not stop it."""
        if self._is_enabled:
            await asyncio.shield(asyncio.create_task(self._save_all(chat)))

    async def _save_all(self, chat: Chat) -> None:
        async with self._save_lock:
            before, failed = self.unsaved, list[Chat]()
            for each in dict.fromkeys([*before, chat]):
                try:
                    await self._save_again_if_lost(each)
                except StoreError as error:
                    failed.append(each)
                    if not before and len(failed) == 1:
                        self._notify(f"not saved: {error}; saving is retried with each new message")
            self.unsaved = failed
            if before and not failed:
                self._say("saving works again; all messages are saved")

    async def _save_again_if_lost(self, chat: Chat) -> None:
        """Store a chat; if it is no longer in the database, store all its messages as a new chat."""
        try:
            await self._save(chat)
        except StoreLost as error:
            self._notify(f"{error}; this chat is saved as a new one")
            chat.chat_id, chat.stored = None, {}
            chat.messages[:] = [replace(message, id=0) for message in chat.messages]
            await self._save(chat)

    async def _save(self, chat: Chat) -> None:
        """Store new and changed messages, except a question without an answer. Messages may change meanwhile."""
        from localdflash.chat.store import ChatStore

        answers = (i for i, each in enumerate(chat.messages) if each.role == "assistant" and (each.text or each.finish))
        last_answer = max(answers, default=-1)
        for i, message in enumerate(chat.messages):
            parent = chat.messages[i - 1].id if i else None
            if parent == 0 or (not message.id and i > last_answer):
                return  # store a question with its answer: the request may still fail
            if chat.chat_id is None:
                fields = {"folder": self._folder, "model": chat.model, "system": chat.system}
                chat.chat_id = await self.run_in_store(ChatStore.create, **fields)
            if not message.id:
                stored = await self.run_in_store(ChatStore.add, chat.chat_id, parent, message)
            elif (before := chat.stored.get(message.id)) is not message:
                stored = await self.run_in_store(ChatStore.update, message, before)
            else:
                continue
            chat.stored[stored.id] = stored
            if i < len(chat.messages):
                _set_id(chat.messages, i, message, stored)


def _set_id(messages: list[Message], i: int, sent: Message, stored: Message) -> None:
    """Give message `i` the id of `stored`, unless it was removed. `sent`: the message as it was stored."""
    now = messages[i]
    if now is sent:
        messages[i] = stored
    elif (now.id, now.role, now.created) == (sent.id, sent.role, sent.created):
        messages[i] = replace(now, id=stored.id)
