"""A chat for commands that print: a `Talk` on an event loop that runs only while it is waited for."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from localdflash.base.errors import DeviceFailed, EngineGone, UsageError
from localdflash.chat.answer_sources import ServerSource
from localdflash.chat.answerer import About, Answerer
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.chat.store import ChatStore
from localdflash.chat.talk import Answering, Talk
from localdflash.cli.interrupt import Interrupt
from localdflash.cli.output import say
from localdflash.cli.remote import GONE
from localdflash.text.thoughts import ThoughtSplit

OURS = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}  # what OpenAI's interface lacks, and what asks for nothing
Show = Callable[[str], None]
T = TypeVar("T")


class Talking:
    """The chat. Ctrl-C stops the answer under way: then `interrupt` is set. An engine that is not `alone` can be found
    again. `kept`: the chat is on disk.
    """

    def __init__(
        self, talk: Talk[Any], runner: asyncio.Runner, interrupt: Interrupt, *, alone: bool, kept: bool
    ) -> None:
        self.interrupt, self.kept = interrupt, kept
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

    @property
    def session(self) -> int | None:
        """The number of the chat, if it is kept and has one."""
        return self._talk.session if self.kept else None

    @property
    def system(self) -> str:
        """The instructions before the chat."""
        return self._talk.system

    @property
    def project(self) -> str:
        """The project's instructions, where they go along."""
        return self._talk.project

    @project.setter
    def project(self, text: str) -> None:
        self._talk.project = text

    @property
    def settings(self) -> ChatSettings:
        """Those of the next answer."""
        return self._talk.settings

    @settings.setter
    def settings(self, settings: ChatSettings) -> None:
        self._talk.settings = settings

    def new(self) -> None:
        """Start a new chat."""
        self._talk.new()

    def instruct(self, system: str) -> None:
        """Set other instructions, from the next answer on."""
        self._runner.run(self._talk.instruct(system))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work; Ctrl-C ends it and is raised."""
        return self._runner.run(work)

    def load(self, pair: str) -> About:
        """Have another pair loaded for this chat. UsageError in a chat that loaded one itself."""
        if not isinstance(self._talk.answerer, Answerer):
            raise UsageError("this chat has loaded its model itself: leave, and start another one with --pair")
        return self._runner.run(self._talk.answerer.load(pair))

    def text_of(self, number: str) -> str:
        """The text of message N, or of the last answer for "". UsageError if there is none."""
        messages = self._talk.messages
        if number and not (number.isdecimal() and number.isascii() and 1 <= int(number[:9]) <= len(messages)):
            raise UsageError(f"there is no message {number}: this chat has {len(messages)}")
        message = messages[int(number) - 1] if number else self._talk.last_answer()
        if message is None:
            raise UsageError("there is no answer yet")
        return message.text

    def ask(
        self, text: str, show: Show, think: Show = lambda _: None, attachments: Sequence[Attachment] = ()
    ) -> Message:
        """The answer to one more message, as far as it came if it was stopped; `show` gets its text as it comes, and
        `think` what was thought before it.

        Any other early end is raised, and the question can be asked again.
        """
        self._talk.say(text, attachments)
        try:
            return self._answered(show, think)
        except BaseException:
            self._talk.take_back_question()
            raise

    def again(self, show: Show, think: Show) -> Message:
        """Another answer to the last message; if there is none, the one before stays. UsageError: nothing was asked."""
        before = list(self._talk.messages)
        self._talk.take_back_answer()
        try:
            return self._answered(show, think)
        except BaseException:
            self._talk.messages[:] = before
            raise

    def more(self, show: Show, think: Show) -> Message:
        """Go on with the last answer. UsageError if there is none."""
        if not self._talk.messages or self._talk.messages[-1].role != "assistant":
            raise UsageError("there is no answer to go on with")
        return self._answered(show, think, self._talk.messages[-1].text)

    def _answered(self, show: Show, think: Show, begun: str | None = None) -> Message:
        """An answer to the messages; `begun` is the text of one to go on with."""
        split = _split_after(begun)

        def tell(thoughts: str, said: str) -> None:
            if thoughts:
                think(thoughts)
            if said:
                show(said)

        def begin_anew() -> None:
            nonlocal split
            split = _split_after(begun)
            show("\n")

        try:
            with self.interrupt:
                answering = self._talk.answer(
                    lambda new, _: tell(*split.push(new)), begin_anew, goes_on=begun is not None
                )
                answer = self._runner.run(answering)
                tell(*split.finish())
            if answer.finish == "gone":
                raise EngineGone(str(self._talk.trouble))
        except (EngineGone, DeviceFailed) as error:
            if self._alone:
                raise
            raise EngineGone(f"{error}: try again") from None
        return answer


def _split_after(begun: str | None) -> ThoughtSplit:
    """What tells thoughts from an answer, after what there is of it."""
    split = ThoughtSplit()
    split.push(begun or "")
    return split


@contextmanager
def here(
    options: dict[str, Any], no_draft: bool, chats: Path | None, settings: ChatSettings, system: str
) -> Iterator[Talking]:
    """A chat with a pair that this process loads."""
    from localdflash.chat.in_process import InProcess
    from localdflash.cli.loading import opened
    from localdflash.models.load_options import Options

    interrupt = Interrupt()
    with (
        opened(Options(**options, draft=not no_draft)) as loaded,
        asyncio.Runner() as runner,
        _talk(InProcess(loaded, interrupt), chats, settings, system, runner) as talk,
    ):
        yield Talking(talk, runner, interrupt, alone=True, kept=chats is not None)


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
                yield Talking(talk, runner, Interrupt(stop), alone=False, kept=chats is not None)
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
    if left_out := [name for name, nothing in OURS.items() if getattr(settings, name) not in (None, nothing)]:
        say(f"The server is asked in OpenAI's words: without {', '.join(left_out)}.")


def _tell_of_restarts() -> Callable[[str], None]:
    gone = False

    def on_stage(stage: str) -> None:
        nonlocal gone
        if stage == "ready" and gone:
            say(GONE)
        gone = stage == "gone" or (gone and stage != "ready")

    return on_stage
