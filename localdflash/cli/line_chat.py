"""Chat line by line, for screen readers, simple terminals and pipes."""

import io
import sys
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

from localdflash.base.errors import ContextOverflow, LocaldflashError, UsageError
from localdflash.chat import model_list, project
from localdflash.chat.attachable_files import AttachableFiles
from localdflash.chat.mentions import attach_mentions
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.sampling_settings import SETTINGS
from localdflash.chat.shell_command import parse_command, run_command
from localdflash.cli.console_chat import ConsoleChat, Show, print_answer
from localdflash.cli.word_wrap import say
from localdflash.tui.captions import attachment_line, model_name
from localdflash.tui.clipboard import copy
from localdflash.tui.commands import COMMANDS, Command, parse

SMALL_MODEL = "This is the small model that ships with localdflash: it knows some Python and little else."
HOW_TO_LEAVE = "Ctrl-C stops an answer; Ctrl-D, or Ctrl-C at an empty prompt, leaves. /help lists the commands."
_ALSO = (
    ("@path", "Attach a file: @path, @path:12-40, @path:Name."),
    ("!command", "Run a shell command, after a confirmation; its output is attached to the next message."),
    ("Ctrl-C", "Stop the answer, or clear the prompt; at an empty prompt, leave, like Ctrl-D."),
)


def converse(chat: ConsoleChat) -> int:
    """Read lines and answer them until the input ends; return the exit code."""
    if chat.pair == "embedded":
        say(f"{SMALL_MODEL} `localdflash models list` names larger pairs.")
    say(HOW_TO_LEAVE)
    with suppress(ImportError):
        import_module("readline")  # gives `input` arrow keys and a history
    with closing(AttachableFiles(Path.cwd(), say)) as files:
        LineChat(chat, files).read_lines()
    if chat.talk.chat_id:
        say(f"localdflash chat --plain --resume {chat.talk.chat_id} continues this chat")
    return 0


def _report_attached(attachment: Attachment) -> None:
    say(f"[attached: {attachment_line(attachment).text.removeprefix('▸ ')}]")


def _read_line(prompt: str) -> str:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def _has_typed() -> bool:
    """Return whether the line that Ctrl-C interrupted has text; False if `readline` is missing."""
    readline = sys.modules.get("readline")
    return bool(readline and readline.get_line_buffer())


def exchange(ask: Callable[[Show, Show], Message]) -> bool:
    """Stream an answer, print its statistics and return True; after an error, print the error and return False."""
    try:
        answer = print_answer(ask)
    except ContextOverflow as error:
        say(f"{error}, or start over with /new")
    except LocaldflashError as error:
        say(str(error))
    else:
        say(_summary(answer))
        return True
    return False


def _summary(answer: Message) -> str:
    """Describe an answer: model, tokens, speed and tokens per verify step, if the server reported them."""
    numbers = answer.numbers
    if "tokens" not in numbers:
        return "[stopped]"
    parts = [f"{numbers['tokens']} tokens"]
    if "tokens_per_second" in numbers:
        parts.append(f"{numbers['tokens_per_second']:.0f} a second")
    if "tau" in numbers:
        parts.append(f"{numbers['tau']:.2f} per verify step")
    name = model_name(str(numbers.get("model", "")))
    return f"[{f'{name}: ' if name else ''}{', '.join(parts)}]"


class LineChat:
    """Chat that reads lines: `/NAME` calls the method `do_NAME`, `!command` runs in a shell, other lines are sent."""

    def __init__(self, chat: ConsoleChat, files: AttachableFiles) -> None:
        self._chat, self._files, self._has_quit = chat, files, False
        self._outputs: list[Attachment] = []  # outputs of shell commands, for the next message

    def read_lines(self) -> None:
        """Handle lines until the input ends or the user quits; print errors."""
        self._attach_project()
        while not self._has_quit:
            try:
                line = _read_line("> ")
            except (EOFError, KeyboardInterrupt) as error:
                say("")
                if isinstance(error, KeyboardInterrupt) and _has_typed():
                    continue
                return
            try:
                if command := parse(line.strip()):
                    self._run(*command)
                elif shell_command := parse_command(line.strip()):
                    self._run_in_shell(shell_command)
                elif line.strip():
                    self._send(line)
            except LocaldflashError as error:
                say(str(error))

    def _run(self, command: Command, argument: str) -> None:
        method = getattr(self, f"do_{command.name}", None)
        if method is None:
            raise UsageError(f"/{command.name} needs the full screen (`localdflash chat`); see /help")
        method(argument) if command.argument_name else method()

    def _run_in_shell(self, command: str) -> None:
        """Run a shell command if the user agrees; attach its output to the next message."""
        say(f"Run this in {self._files.root}? Its output is attached to your next message: {command}")
        with suppress(EOFError, KeyboardInterrupt):
            if _read_line("[y/N] ").strip().lower() in ("y", "yes"):
                output = self._chat.wait(run_command(command, Path(self._files.root)))
                self._outputs.append(output)
                _report_attached(output)

    def _send(self, line: str) -> None:
        found = attach_mentions(line, self._files)
        for reason in found.refused:
            say(reason)
        if found.refused:
            return
        attachments = (*self._outputs, *found.attachments)
        for one in found.attachments:
            _report_attached(one)
        if exchange(lambda show, think: self._chat.ask(line, show, think, attachments)):
            self._outputs.clear()

    def do_help(self) -> None:
        """List the commands."""
        supported = [(one.usage, one.help) for one in COMMANDS if hasattr(self, f"do_{one.name}")]
        width = max(len(usage) for usage, _ in supported)
        for usage, description in (*supported, *_ALSO):
            say(f"{usage:<{width}}  {description}")

    def do_new(self) -> None:
        """Start a new chat."""
        self._chat.talk.start_new_chat()
        say("A new conversation.")

    def do_quit(self) -> None:
        """End the chat."""
        self._has_quit = True

    def do_retry(self) -> None:
        """Answer the last message again."""
        exchange(self._chat.retry)

    def do_continue(self) -> None:
        """Continue the last answer."""
        exchange(self._chat.continue_last)

    def do_copy(self, number: str = "") -> None:
        """Copy the last answer, or message N."""
        text = self._chat.text_of(number)
        say(self._chat.wait(copy(_copy_by_terminal, text)).line(f"message {number}" if number else "the answer"))

    def do_model(self, name: str = "") -> None:
        """List the models, or load one."""
        try:
            self._load_model(name) if name else self._list_models()
        except KeyboardInterrupt:
            say(f"{name} is not loaded" if name else "")

    def _load_model(self, name: str) -> None:
        info = self._chat.wait(self._chat.talk.answerer.load(name))
        say("; ".join(filter(None, (f"{info.pair} is loaded: {info.context} tokens of context", info.notice))))

    def _list_models(self) -> None:
        for row in self._chat.wait(model_list.list_models()):
            state = "" if row.is_downloaded else "not downloaded"
            marks = (row.memory, state, row.why_not and f"cannot run on this machine: {row.why_not}")
            mark = " (loaded)" if row.id == self._chat.pair else ""
            say(f"{row.id}{mark}: {', '.join(filter(None, (row.description, *marks)))}")
        say("/model ID loads one")

    def do_role(self, name: str = "") -> None:
        """Choose a role."""
        from localdflash.chat.roles import list_roles, load_role

        if not name:
            say(f"/role NAME, one of none, {', '.join(list_roles(say))}")
            return
        self._chat.wait(self._chat.talk.set_instructions(load_role(name)))
        say(f"role {name}, from the next answer on")

    def do_system(self, text: str = "") -> None:
        """Show or set the user's own instructions."""
        if text:
            self._chat.wait(self._chat.talk.set_instructions(text))
        say(f"Instructions before the chat: {self._chat.talk.system or 'none'}")

    def do_set(self, assignment: str = "") -> None:
        """Show or change the settings."""
        if assignment:
            name, _, value = assignment.replace("=", " ").partition(" ")
            self._chat.talk.settings = self._chat.talk.settings.with_value(name, value)
        say(", ".join(f"{name} {self._chat.talk.settings.format_value(name)}" for name in SETTINGS))

    def do_think(self, value: str = "") -> None:
        """Turn the model's reasoning on or off."""
        self.do_set(f"thinking {value or ('off' if self._chat.talk.settings.thinking else 'on')}")

    def do_project(self, value: str = "") -> None:
        """Show or decide whether the project's instructions are sent."""
        if value not in ("", "on", "off"):
            raise UsageError(f"expected on or off, got {value!r}")
        file = project.find_project_file(Path.cwd())
        if file is None:
            raise UsageError(f"no {project.FILE_NAME} in this folder or its parents")
        if value:
            self._chat.talk.project = file.text() if value == "on" else ""
            if self._chat.is_stored:
                project.remember_decision(file, value == "on")
        state = "is sent, from the next answer on" if self._chat.talk.project else "is not sent"
        say(f"{project.FILE_NAME} {state}: {file.path}")

    def _attach_project(self) -> None:
        """Send the project's instructions if the user allowed it; if that is not decided yet, say how to decide."""
        file = project.find_project_file(Path.cwd())
        if file is None or file.allowed is False:
            return
        if file.allowed is None:
            say(f"This project has {project.FILE_NAME}: /project on sends it to the model, /project off does not.")
            return
        try:
            self._chat.talk.project = file.text()
            say(f"[{project.FILE_NAME} is sent]")
        except UsageError as error:
            say(str(error))


def _copy_by_terminal(text: str) -> None:
    """If stdout is a terminal, let the terminal copy the text to the clipboard (OSC 52)."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\x1b]52;c;{b64encode(text.encode()).decode()}\a")
        sys.stdout.flush()
