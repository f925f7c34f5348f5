"""A chat for commands that print: a `Talk` on an event loop that runs only while it is waited for."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from localdflash.chat.answerer import Answerer
from localdflash.chat.messages import Message
from localdflash.chat.settings import ChatSettings
from localdflash.chat.sources import ServerSource
from localdflash.chat.store import ChatStore
from localdflash.chat.talk import Answering, Talk
from localdflash.cli.interrupt import Interrupt
from localdflash.cli.output import say
from localdflash.cli.remote import GONE
from localdflash.errors import DeviceFailed, EngineGone, UsageError
from localdflash.text.thoughts import ThoughtSplit

OURS = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}  # what OpenAI's interface lacks, and what asks for nothing
Show = Callable[[str], None]


class Talking:
    """The chat. Ctrl-C stops the answer under way: then `interrupt` is set. An engine that is not `alone` can be found
    again.
    """

    def __init__(self, talk: Talk[Any], runner: asyncio.Runner, interrupt: Interrupt, *, alone: bool) -> None:
        self.interrupt = interrupt
        self._talk, self._runner, self._alone = talk, runner, alone

    @property
    def pair(self) -> str:
        """The name of what answers."""
        about = self._talk.answerer.about
        return about.pair if about else ""

    def go_on(self, session: int | Literal["latest"], system: str) -> None:
        """Continue an earlier chat, with other instructions if there are any. UsageError if there is none."""
        self._runner.run(self._go_on(session, system))

    async def _go_on(self, session: int | Literal["latest"], system: str) -> None:
        if session == "latest":
            latest = await self._talk.kept(ChatStore.latest, self._talk.folder)
            if latest is None:
                raise UsageError("--continue: there is no earlier chat in this folder")
            session = latest.id
        await self._talk.open(session)
        if system:
            await self._talk.instruct(system)
        if self._talk.messages and self._talk.messages[-1].role == "user":
            self._talk.take_back_question()  # nothing has answered it

    def new(self) -> None:
        """Start a new chat."""
        self._talk.new()

    def ask(self, text: str, show: Show, think: Show = lambda _: None) -> Message:
        """The answer to one more message, as far as it came if it was stopped; `show` gets its text as it comes, and
        `think` what was thought before it.

        Any other early end is raised, and the question can be asked again.
        """
        split = ThoughtSplit()

        def tell(thoughts: str, said: str) -> None:
            if thoughts:
                think(thoughts)
            if said:
                show(said)

        def begin_anew() -> None:
            nonlocal split
            split = ThoughtSplit()
            show("\n")

        self._talk.say(text)
        try:
            with self.interrupt:
                answer = self._runner.run(self._talk.answer(lambda new, _: tell(*split.push(new)), begin_anew))
                tell(*split.finish())
            if answer.finish == "gone":
                raise EngineGone(str(self._talk.trouble))
        except BaseException as error:
            self._talk.take_back_question()
            if isinstance(error, EngineGone | DeviceFailed) and not self._alone:
                raise EngineGone(f"{error}: try again") from None
            raise
        return answer


@contextmanager
def here(
    options: dict[str, Any], no_draft: bool, chats: Path | None, settings: ChatSettings, system: str
) -> Iterator[Talking]:
    """A chat with a pair that this process loads."""
    from localdflash.backend.options import Options
    from localdflash.chat.in_process import InProcess
    from localdflash.cli.loading import opened

    interrupt = Interrupt()
    with (
        opened(Options(**options, draft=not no_draft)) as loaded,
        asyncio.Runner() as runner,
        _talk(InProcess(loaded, interrupt), chats, settings, system, runner) as talk,
    ):
        yield Talking(talk, runner, interrupt, alone=True)


@contextmanager
def by_engine(source: ServerSource, chats: Path | None, settings: ChatSettings, system: str) -> Iterator[Talking]:
    """A chat with the engine of this source, which is found or started first."""
    engine = Answerer(source, say)
    engine.on_stage = _tell_of_restarts()
    with asyncio.Runner() as runner:
        try:
            runner.run(engine.ready())
            if not engine.ours:
                _tell_what_is_left_out(settings)
            with _talk(engine, chats, settings, system, runner) as talk:
                stop = lambda: runner.get_loop().call_soon_threadsafe(talk.stop)  # noqa: E731
                yield Talking(talk, runner, Interrupt(stop), alone=False)
        finally:
            runner.run(engine.close())


@contextmanager
def _talk(
    engine: Answering, chats: Path | None, settings: ChatSettings, system: str, runner: asyncio.Runner
) -> Iterator[Talk[Any]]:
    talk = Talk(engine, chats, os.getcwd(), say)
    talk.settings, talk.system = settings, system
    try:
        yield talk
    finally:
        runner.run(talk.close())


def _tell_what_is_left_out(settings: ChatSettings) -> None:
    if left_out := [name for name, nothing in OURS.items() if getattr(settings, name) != nothing]:
        say(f"The server is asked in OpenAI's words: without {', '.join(left_out)}.")


def _tell_of_restarts() -> Callable[[str], None]:
    gone = False

    def on_stage(stage: str) -> None:
        nonlocal gone
        if stage == "ready" and gone:
            say(GONE)
        gone = stage == "gone" or (gone and stage != "ready")

    return on_stage
