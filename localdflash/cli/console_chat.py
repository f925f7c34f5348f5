"""A chat whose answers are printed: one answer for a script, or line by line (`line_chat`).

The answer goes to stdout, everything else to stderr. The event loop runs only while an answer is waited for.
"""

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from localdflash.base.errors import DeviceFailed, EngineGone, UsageError
from localdflash.chat.answer_sources import ServerSource
from localdflash.chat.answerer import Answerer
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.chat.talk import Talk
from localdflash.cli.interrupt import Interrupt
from localdflash.cli.output import ENGINE_RESTARTED, print_json, print_json_line, say
from localdflash.text.sanitize import sanitize
from localdflash.text.thoughts import ThoughtSplit, split

MAX_STDIN_BYTES = 16 * 2**20  # as many as the engine takes in a request
# Sampling parameters that OpenAI's API lacks, each with the value that changes nothing.
NOT_IN_OPENAI = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_COUNTED = ("tokens", "steps", "tau", "drafted", "accepted", "accept_by_slot", "steps_by_drafter")
OutputFormat = Literal["text", "json", "jsonl"]
Show = Callable[[str], None]


class ConsoleChat:
    """Chat whose answers are printed. Ctrl-C stops the current answer, and `interrupt` is then set. If `kept`, the
    chat is stored on disk. `wait` runs a coroutine to its end; Ctrl-C ends it and is raised.
    """

    def __init__(self, talk: Talk, runner: asyncio.Runner, interrupt: Interrupt, *, kept: bool) -> None:
        self.talk, self.wait, self.interrupt, self.kept = talk, runner.run, interrupt, kept

    @property
    def pair(self) -> str:
        """Return the name of what answers."""
        about = self.talk.answerer.about
        return about.pair if about else ""

    async def go_on(self, session: int | Literal["latest"], system: str) -> None:
        """Continue an earlier chat, with other instructions if there are any. UsageError if there is none."""
        if session == "latest":
            from localdflash.chat.store import ChatStore

            latest = await self.talk.run_in_store(ChatStore.latest, self.talk.folder)
            if latest is None:
                raise UsageError("--continue: no earlier chat in this folder")
            session = latest.id
        await self.talk.open(session)
        if system:
            await self.talk.set_instructions(system)
        if self.talk.messages and self.talk.messages[-1].role == "user":
            self.talk.take_back_question()  # nothing has answered it

    def text_of(self, number: str) -> str:
        """Return the text of message N, or of the last answer for "". UsageError if there is none."""
        messages = self.talk.messages
        if number and not (number.isdecimal() and number.isascii() and 1 <= int(number[:9]) <= len(messages)):
            raise UsageError(f"no message {number}; this chat has {len(messages)} messages")
        message = messages[int(number) - 1] if number else self.talk.last_answer()
        if message is None:
            raise UsageError("this chat has no answer yet")
        return message.text

    def ask(
        self, text: str, show: Show, think: Show = lambda _: None, attachments: Sequence[Attachment] = ()
    ) -> Message:
        """Return the answer to one more message, as far as it came if it was stopped.

        `show` gets its text as it comes, and `think` what was thought before it. Any other early end is raised, and the
        question can be asked again.
        """
        self.talk.say(text, attachments)
        try:
            return self._answered(show, think)
        except BaseException:
            self.talk.take_back_question()
            raise

    def again(self, show: Show, think: Show) -> Message:
        """Return another answer to the last message; if there is none, the one before stays. UsageError without one."""
        before = list(self.talk.messages)
        self.talk.take_back_answer()
        try:
            return self._answered(show, think)
        except BaseException:
            self.talk.messages[:] = before
            raise

    def more(self, show: Show, think: Show) -> Message:
        """Go on with the last answer. UsageError if there is none."""
        if not self.talk.messages or self.talk.messages[-1].role != "assistant":
            raise UsageError("this chat has no answer to continue")
        return self._answered(show, think, self.talk.messages[-1].text)

    def _answered(self, show: Show, think: Show, begun: str | None = None) -> Message:
        """Return an answer to the messages; `begun` is the text of one to go on with."""
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
                answering = self.talk.answer(
                    lambda new, _: tell(*split.push(new)), begin_anew, goes_on=begun is not None
                )
                answer = self.wait(answering)
                tell(*split.finish())
            if answer.finish == "gone":
                raise EngineGone(str(self.talk.trouble))
        except (EngineGone, DeviceFailed) as error:
            raise EngineGone(f"{error}: try again") from None
        return answer


def _split_after(begun: str | None) -> ThoughtSplit:
    """Return what tells thoughts from an answer, after what there is of it."""
    split = ThoughtSplit()
    split.push(begun or "")
    return split


@contextmanager
def open_chat(source: ServerSource, chats: Path | None, settings: ChatSettings, system: str) -> Iterator[ConsoleChat]:
    """Find or start the engine of this source, and open a chat with it."""
    engine = Answerer(source, say)
    engine.on_stage = _report_restarts()
    with asyncio.Runner() as runner:
        try:
            runner.run(engine.ready())
            ignored = [name for name, none in NOT_IN_OPENAI.items() if getattr(settings, name) not in (None, none)]
            if ignored and not engine.ours:
                say(f"The server is asked in OpenAI's words: without {', '.join(ignored)}.")
            talk = Talk(engine, chats, os.getcwd(), say, in_memory=False)
            talk.settings, talk.system = settings, system
            stop = lambda: runner.get_loop().call_soon_threadsafe(talk.stop)  # noqa: E731
            try:
                yield ConsoleChat(talk, runner, Interrupt(stop), kept=chats is not None)
            finally:
                runner.run(talk.close())
        finally:
            runner.run(engine.close())


def _report_restarts() -> Callable[[str], None]:
    gone = False

    def on_stage(stage: str) -> None:
        nonlocal gone
        if stage == "ready" and gone:
            say(ENGINE_RESTARTED)
        gone = stage == "gone" or (gone and stage != "ready")

    return on_stage


def read_stdin() -> str:
    """Return the text on stdin; UsageError if it is not UTF-8, or more than any context holds."""
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1) if sys.stdin else b""  # None: started without one
    if len(data) > MAX_STDIN_BYTES:
        raise UsageError(f"stdin has more than {MAX_STDIN_BYTES // 2**20} MiB; pipe a smaller part")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 at byte {error.start}") from None


def read_attachment() -> tuple[Attachment, ...]:
    """What is piped, or read from a file, beside a prompt of its own; nothing where stdin is neither, or empty."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        return ()
    if not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind)):  # a terminal, /dev/null
        return ()
    text = read_stdin()
    return (Attachment("output", "stdin", text),) if text.strip() else ()


def read_mentions(prompt: str) -> tuple[Attachment, ...]:
    """Return the files that a prompt mentions (`@path`); UsageError for one that may not be read."""
    from localdflash.chat.attachable_files import AttachableFiles
    from localdflash.chat.mentions import attach_mentions

    with closing(AttachableFiles(Path.cwd(), say)) as files:
        found = attach_mentions(prompt, files)
    if found.refused:
        raise UsageError("; ".join(found.refused))
    return found.attachments


def answer_once(chat: ConsoleChat, prompt: str, form: OutputFormat, attachments: Sequence[Attachment] = ()) -> int:
    """Print an answer; return the exit code."""
    match form:
        case "text":
            answer = print_answer(lambda show, think: chat.ask(prompt, show, think, attachments))
            if sys.stderr.isatty() and "model" in answer.numbers:
                from localdflash.cli.offer import better_pair_hint
                from localdflash.tui.captions import model_name

                say(f"[{model_name(str(answer.numbers['model']))}{better_pair_hint(chat.pair)}]")
        case "json":
            answer = chat.ask(prompt, lambda _: None, attachments=attachments)
            thoughts, said, _ = split(answer.text)
            print_json({**({"thoughts": thoughts} if thoughts else {}), "answer": said, **_told(answer)})
        case "jsonl":
            answer = chat.ask(
                prompt,
                lambda text: print_json_line({"text": text}),
                lambda thoughts: print_json_line({"thoughts": thoughts}),
                attachments,
            )
            print_json_line(_told(answer))
    return 130 if chat.interrupt.set else 0


def print_answer(ask: Callable[[Show, Show], Message]) -> Message:
    """Print an answer as it comes, without what was thought before it; say so if it is shorter than the model would
    have made it. `ask` gets what shows text, and what is told of thoughts.
    """
    terminal, says_thinking = sys.stdout.isatty(), sys.stderr.isatty()

    def show(text: str) -> None:
        sys.stdout.write(sanitize(text) if terminal else text)
        sys.stdout.flush()

    def think(_thoughts: str) -> None:
        nonlocal says_thinking
        if says_thinking:
            says_thinking = False
            say("[thinking]")

    answer = ask(show, think)
    show("\n")
    if answer.finish == "repeat":
        say("[stopped: the model repeated itself]")
    if answer.finish == "length" and "tokens" in answer.numbers:
        say(f"[cut after {answer.numbers['tokens']} tokens: --max-tokens sets how many]")
    return answer


def _told(answer: Message) -> dict[str, Any]:
    model = {"model": answer.numbers["model"]} if "model" in answer.numbers else {}
    return {"finish": answer.finish, **model, **statistics(answer.numbers)}


def statistics(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of an answer that a command prints; of another server tokens and their speed at most."""
    if "steps" not in numbers:
        return {name: numbers[name] for name in ("tokens", "tokens_per_second") if name in numbers}
    by_drafter = {name or "none": steps for name, steps in numbers["steps_by_drafter"].items()}
    told = {name: numbers[name] for name in _COUNTED} | {"steps_by_drafter": by_drafter}
    told["ms"] = numbers.get("ms") or {"prompt": numbers.get("prompt_ms", 0.0), "answer": numbers.get("answer_ms", 0.0)}
    return {**told, "tokens_per_second": round(numbers["tokens_per_second"], 1)}
