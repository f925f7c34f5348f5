"""Print answers: one answer for a script, or line by line (`line_chat`). Everything else goes to stderr."""

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from localdflash.base.errors import DeviceError, EngineDisconnect, UsageError
from localdflash.chat.answer_sources import ServerSource
from localdflash.chat.answerer import Answerer
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.chat.talk import Talk
from localdflash.cli.interrupt import Interrupt
from localdflash.cli.output import DAEMON_RESTARTED, print_json, print_json_line, say
from localdflash.text.sanitize import sanitize
from localdflash.text.thoughts import ThoughtSplit, split_thoughts

MAX_STDIN_BYTES = 16 * 2**20  # size limit of a request to the daemon
NOT_IN_OPENAI = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}  # neutral value by name
_COUNTS = ("tokens", "steps", "tau", "drafted", "accepted", "accept_by_slot", "steps_by_drafter")
OutputFormat = Literal["text", "json", "jsonl"]
Show = Callable[[str], None]


class ConsoleChat:
    """Chat with printed answers. Ctrl-C stops the current answer and sets `interrupt`. `is_stored`: saved to disk.

    `wait` runs a coroutine to its end; Ctrl-C cancels it and raises KeyboardInterrupt.
    """

    def __init__(self, talk: Talk, runner: asyncio.Runner, interrupt: Interrupt, *, is_stored: bool) -> None:
        self.talk, self.wait, self.interrupt, self.is_stored = talk, runner.run, interrupt, is_stored

    @property
    def pair(self) -> str:
        """Return the name of the pair that answers."""
        info = self.talk.answerer.info
        return info.pair if info else ""

    async def resume(self, chat_id: int | Literal["latest"], system: str) -> None:
        """Continue an earlier chat, with new instructions unless `system` is "". UsageError if there is no chat."""
        if chat_id == "latest":
            from localdflash.chat.store import ChatStore

            latest = await self.talk.run_in_store(ChatStore.latest, self.talk.folder)
            if latest is None:
                raise UsageError("--continue: no earlier chat in this folder")
            chat_id = latest.id
        await self.talk.open(chat_id)
        if system:
            await self.talk.set_instructions(system)
        if self.talk.messages and self.talk.messages[-1].role == "user":
            self.talk.remove_user_message()  # this message was not answered

    def text_of(self, number: str) -> str:
        """Return the text of message N, or of the last answer if `number` is "". UsageError if there is none."""
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
        """Send a message and return the answer; `think` gets the reasoning. After an error, the message is removed."""
        self.talk.add_user_message(text, attachments)
        try:
            return self._answer(show, think)
        except BaseException:
            self.talk.remove_user_message()
            raise

    def retry(self, show: Show, think: Show) -> Message:
        """Answer the last message again; after an error, the old answer stays. UsageError if there is no message."""
        messages = list(self.talk.messages)
        self.talk.remove_answer()
        try:
            return self._answer(show, think)
        except BaseException:
            self.talk.messages[:] = messages
            raise

    def continue_last(self, show: Show, think: Show) -> Message:
        """Continue the last answer. UsageError if there is none."""
        if not self.talk.messages or self.talk.messages[-1].role != "assistant":
            raise UsageError("this chat has no answer to continue")
        return self._answer(show, think, self.talk.messages[-1].text)

    def _answer(self, show: Show, think: Show, initial: str | None = None) -> Message:
        """Answer the last message, or continue the last answer, whose text is `initial`; return the whole answer."""

        def start_split() -> ThoughtSplit:
            split = ThoughtSplit()
            split.push(initial or "")
            return split

        split = start_split()

        def emit(thoughts: str, text: str) -> None:
            if thoughts:
                think(thoughts)
            if text:
                show(text)

        def restart() -> None:
            nonlocal split
            split = start_split()
            show("\n")

        try:
            with self.interrupt:
                on_text = lambda new, _: emit(*split.push(new))  # noqa: E731
                answer = self.wait(self.talk.answer(on_text, restart, continue_last=initial is not None))
                emit(*split.finish())
            if answer.finish == "gone":
                raise EngineDisconnect(str(self.talk.error))
        except (EngineDisconnect, DeviceError) as error:
            raise EngineDisconnect(f"{error}: try again") from None
        return answer


@contextmanager
def open_chat(source: ServerSource, chats: Path | None, settings: ChatSettings, system: str) -> Iterator[ConsoleChat]:
    """Connect to the server `source`, start it if necessary, and yield a new chat; close both at the end."""
    answerer, was_lost = Answerer(source, say), False

    def report_restart(stage: str) -> None:
        nonlocal was_lost
        if stage == "ready" and was_lost:
            say(DAEMON_RESTARTED)
        was_lost = stage == "disconnected" or (was_lost and stage != "ready")

    answerer.on_stage = report_restart
    with asyncio.Runner() as runner:
        try:
            runner.run(answerer.ready())
            ignored = [name for name, none in NOT_IN_OPENAI.items() if getattr(settings, name) not in (None, none)]
            if ignored and not answerer.is_localdflash:
                say(f"The server has only OpenAI's API: {', '.join(ignored)} ignored.")
            talk = Talk(answerer, chats, os.getcwd(), say, allow_in_memory=False)
            talk.settings, talk.system = settings, system
            stop = lambda: runner.get_loop().call_soon_threadsafe(talk.stop)  # noqa: E731
            try:
                yield ConsoleChat(talk, runner, Interrupt(stop), is_stored=chats is not None)
            finally:
                runner.run(talk.close())
        finally:
            runner.run(answerer.close())


def read_stdin() -> str:
    """Return the text on stdin; UsageError if it is not UTF-8, or larger than `MAX_STDIN_BYTES`."""
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1) if sys.stdin else b""
    if len(data) > MAX_STDIN_BYTES:
        raise UsageError(f"stdin has more than {MAX_STDIN_BYTES // 2**20} MiB; pipe a smaller part")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 at byte {error.start}") from None


def read_attachment() -> tuple[Attachment, ...]:
    """Return the text on stdin as an attachment; () if stdin is empty, closed, a terminal or another device."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return ()
    if not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind)):
        return ()
    text = read_stdin()
    return (Attachment("output", "stdin", text),) if text.strip() else ()


def read_mentions(prompt: str) -> tuple[Attachment, ...]:
    """Return the files that a prompt mentions (`@path`); UsageError for a file that may not be read."""
    from localdflash.chat.attachable_files import AttachableFiles
    from localdflash.chat.mentions import attach_mentions

    with closing(AttachableFiles(Path.cwd(), say)) as files:
        found = attach_mentions(prompt, files)
    if found.refused:
        raise UsageError("; ".join(found.refused))
    return found.attachments


def answer_once(chat: ConsoleChat, prompt: str, form: OutputFormat, attachments: Sequence[Attachment] = ()) -> int:
    """Answer one prompt, print the answer in the given format, and return the exit code."""
    match form:
        case "text":
            answer = print_answer(lambda show, think: chat.ask(prompt, show, think, attachments))
            if sys.stderr.isatty() and "model" in answer.numbers:
                from localdflash.cli.offer import better_pair_hint
                from localdflash.tui.captions import model_name

                say(f"[{model_name(str(answer.numbers['model']))}{better_pair_hint(chat.pair)}]")
        case "json":
            answer = chat.ask(prompt, lambda _: None, attachments=attachments)
            thoughts, text, _ = split_thoughts(answer.text)
            print_json({**({"thoughts": thoughts} if thoughts else {}), "answer": text, **_result(answer)})
        case "jsonl":
            answer = chat.ask(
                prompt,
                lambda text: print_json_line({"text": text}),
                lambda thoughts: print_json_line({"thoughts": thoughts}),
                attachments,
            )
            print_json_line(_result(answer))
    return 130 if chat.interrupt.is_set else 0


def print_answer(ask: Callable[[Show, Show], Message]) -> Message:
    """Stream an answer to stdout without its reasoning. If the answer is cut, say on stderr why."""
    announces_thinking, write = sys.stderr.isatty(), sys.stdout.write
    if sys.stdout.isatty():
        from localdflash.cli.word_wrap import WordWrap

        wrapping = WordWrap()
        write = lambda text: sys.stdout.write(wrapping.push(sanitize(text)))  # noqa: E731

    def show(text: str) -> None:
        write(text)
        sys.stdout.flush()

    def think(_thoughts: str) -> None:
        nonlocal announces_thinking
        if announces_thinking:
            announces_thinking = False
            say("[thinking]")

    try:
        answer = ask(show, think)
    except BaseException:
        if sys.stdout.isatty():
            show("\n")  # prints the word that was held back
        raise
    show("\n")
    if answer.finish == "repeat":
        say("[stopped: the model repeated itself]")
    if answer.finish == "length" and "tokens" in answer.numbers:
        say(f"[cut after {answer.numbers['tokens']} tokens: --max-tokens sets the limit]")
    return answer


def _result(answer: Message) -> dict[str, Any]:
    model = {"model": answer.numbers["model"]} if "model" in answer.numbers else {}
    return {"finish": answer.finish, **model, **statistics(answer.numbers)}


def statistics(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of an answer for JSON; of a remote server those that it reported."""
    if "steps_by_drafter" not in numbers:
        return {name: numbers[name] for name in (*_COUNTS, "tokens_per_second") if name in numbers}
    by_drafter = {name or "none": steps for name, steps in numbers["steps_by_drafter"].items()}
    ms = numbers.get("ms") or {"prompt": numbers.get("prompt_ms", 0.0), "answer": numbers.get("answer_ms", 0.0)}
    speed = round(numbers["tokens_per_second"], 1)
    counts = {name: numbers[name] for name in _COUNTS}
    return {**counts, "steps_by_drafter": by_drafter, "ms": ms, "tokens_per_second": speed}
