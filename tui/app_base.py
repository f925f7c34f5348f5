"""Base class of the chat app: the state and helpers that all actions share."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from textual import work
from textual.app import App
from textual.screen import ModalScreen
from textual.worker import Worker

from localdflash.base.errors import LocaldflashError
from localdflash.chat.answer_sources import ServerSource
from localdflash.chat.answerer import Answerer
from localdflash.chat.attachable_files import AttachableFiles
from localdflash.chat.messages import Attachment
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.chat.talk import Talk
from localdflash.text.sanitize import sanitize
from localdflash.tui.commands import Command
from localdflash.tui.history import History, history_file
from localdflash.tui.transcript import Transcript

if TYPE_CHECKING:
    from localdflash.tui.prompt_field import Prompt
    from localdflash.tui.status_bar import StatusBar

P = ParamSpec("P")
S = TypeVar("S", bound="ChatAppBase")
T = TypeVar("T")
LATEST: Literal["latest"] = "latest"


def in_background(
    action: Callable[Concatenate[S, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[S, P], Worker[None]]:
    """Decorate an action to run as a worker, with its errors shown in the transcript."""

    @work
    async def wrapper(self: S, /, *arguments: P.args, **names: P.kwargs) -> None:
        try:
            await action(self, *arguments, **names)
        except LocaldflashError as error:
            self.show_error(str(error))
        except OSError as error:
            self.show_error(f"{error.strerror}: {error.filename}" if error.filename else str(error))

    return wrapper


@dataclass(frozen=True)
class ChatStart:
    """Options to start a chat with. `chats`: database path, or None to store nothing. `resume`: a chat to continue."""

    source: ServerSource
    folder: Path
    chats: Path | None
    settings: ChatSettings = field(default_factory=ChatSettings)
    system: str = ""
    resume: int | Literal["latest"] | None = None
    pair: str = "embedded"  # id of the target and drafter to load; "embedded": the bundled pair
    server: str = ""  # URL of a remote server
    debug: bool = False  # whether an internal error shows a traceback


class ChatAppBase(App[int]):
    """Base class of the app: the state and helpers that all action mixins share."""

    transcript: Transcript
    prompt: "Prompt"
    status_bar: "StatusBar"

    def __init__(self, start: ChatStart) -> None:
        super().__init__()
        self.start = start
        self.talk = Talk(Answerer(start.source, self.say), start.chats, str(start.folder), self.show_error, self.say)
        self.talk.settings, self.talk.system = start.settings, start.system
        self.files = AttachableFiles(start.folder, self.say_from_thread)
        self.history = History(history_file() if start.chats else None, self.say_from_thread)
        self.queued: list[tuple[str, Sequence[Attachment]]] = []  # messages to send later, oldest first
        self.errors: list[str] = []  # error messages since the last answer began
        self.chats_loading = 0  # number of chats being loaded or shortened; messages sent meanwhile are queued
        self.cancellable_task: asyncio.Task[Any] | None = None

    def say(self, line: str) -> None:
        """Show a notice by the program in the transcript."""
        self.transcript.note(sanitize(line))

    def say_from_thread(self, line: str) -> None:
        """Show a notice; may be called from any thread."""
        self.call_later(self.say, line)

    def show_error(self, line: str) -> None:
        """Show an error in the transcript."""
        self.errors.append(line)
        self.transcript.note(sanitize(line), "error")

    def show_chat(self) -> None:
        """Show the messages of the conversation."""
        self.transcript.show(self.talk.messages)
        self.query_one("#welcome").display = not self.talk.messages
        self.refresh_status()
        self.count_used()

    @work(exclusive=True, group="count")
    async def count_used(self) -> None:
        """Count the context tokens that the chat uses, and show the number, unless disconnected from the daemon."""
        if self.talk.answerer.stage == "disconnected":
            return
        with suppress(LocaldflashError):  # an error here would be reported again by the next message
            await self.talk.count()
        self.refresh_status()

    @asynccontextmanager
    async def loading_chat(self) -> AsyncGenerator[None]:
        """Mark that a chat is being loaded; messages sent meanwhile are queued for that chat."""
        self.chats_loading += 1
        try:
            yield
        finally:
            self.chats_loading -= 1
            if not self.chats_loading:
                self.send_queued(stopped=False)

    def send_queued(self, *, stopped: bool) -> None:
        """Send the next queued message; if the user stopped the answer, put all of them back into the prompt."""
        raise NotImplementedError

    def refresh_status(self) -> None:
        """Update the status line from the daemon."""
        raise NotImplementedError

    def run_command(self, command: Command, argument: str) -> None:
        """Run a slash command."""
        action = getattr(self, f"action_{command.name}")
        result = action(argument) if command.argument_name else action()
        if asyncio.iscoroutine(result):
            self.run_worker(result)

    async def run_until_esc(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a coroutine; None if the user cancels it with Esc."""
        task: asyncio.Task[T] = asyncio.create_task(work)
        self.cancellable_task = task
        try:
            return await task
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) and current.cancelling():  # this method was cancelled, not `task`
                task.cancel()
                raise
            return None
        finally:
            self.cancellable_task = None

    async def show_dialog(self, dialog: ModalScreen[T | None]) -> T | None:
        """Show a dialog; return its result, or None if it was closed."""
        # In callers' `await self.push_screen_wait(dialog) or default`, mypy would infer a wrong type for the dialog.
        return await self.push_screen_wait(dialog)

    async def confirm(self, question: str, lines: Sequence[str], yes: str) -> bool:
        """Return whether the user chooses the button `yes`, not Cancel."""
        from localdflash.tui.screens.questions import Option, QuestionDialog

        dialog = QuestionDialog(question, lines, Option("y", yes), Option("n", "Cancel"))
        return await self.push_screen_wait(dialog) == "y"

    @property
    def is_covered(self) -> bool:
        """Return whether a dialog covers the chat."""
        return isinstance(self.screen, ModalScreen)
