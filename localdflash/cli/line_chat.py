"""The chat line by line: for screen readers, for simple terminals, and for pipes."""

import io
import sys
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from localdflash.base.errors import ContextOverflow, LocaldflashError, UsageError
from localdflash.chat import model_list, project
from localdflash.chat.attachable_files import AttachableFiles
from localdflash.chat.mentions import attach_mentions
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.shell_command import parse_command, run_command
from localdflash.cli.console_chat import ConsoleChat, Show, print_answer
from localdflash.cli.output import say
from localdflash.tui.captions import attachment_line, model_name
from localdflash.tui.clipboard import copy
from localdflash.tui.commands import COMMANDS, Command, parse

SMALL_MODEL = "This is the small model that ships with localdflash: it knows some Python and little else."
HOW_TO_LEAVE = "Ctrl-C stops an answer; Ctrl-D, or Ctrl-C at the prompt, leaves. /help lists the commands."
_ALSO = (
    ("@path", "A file that goes along: @path, @path:12-40, @path:Name."),
    ("!command", "Run a command of yours; what it prints goes along with the next message. You are asked first."),
    ("Ctrl-C", "Stop the answer; at the prompt, leave. So does Ctrl-D."),
)


def converse(chat: ConsoleChat) -> int:
    """Ask for lines and answer them until the input ends; return the exit code."""
    if chat.pair == "embedded":
        say(f"{SMALL_MODEL} `localdflash models list` names larger pairs.")
    say(HOW_TO_LEAVE)
    with suppress(ImportError):
        import_module("readline")  # gives `input` arrow keys and a history
    with closing(AttachableFiles(Path.cwd(), say)) as files:
        LineReader(chat, files).take_all()
    if chat.talk.session:
        say(f"localdflash chat --plain --resume {chat.talk.session} continues this chat")
    return 0


class LineReader:
    """What is done with a line: a command is run, `!command` by the shell, anything else is sent."""

    def __init__(self, chat: ConsoleChat, files: AttachableFiles) -> None:
        self._chat, self._files = chat, files
        self._commands = PlainCommands(chat)
        self._outputs: list[Attachment] = []  # what goes along with the next message

    def take_all(self) -> None:
        """Take lines until the input ends, or the user leaves."""
        self._commands.look_for_project()
        while not self._commands.left:
            try:
                line = _read_line("> ")
            except (EOFError, KeyboardInterrupt):
                say("")
                return
            if line.strip():
                self._take(line)

    def _take(self, line: str) -> None:
        """Errors are printed, and the conversation goes on."""
        try:
            if command := parse(line.strip()):
                self._commands.run(*command)
            elif outside := parse_command(line.strip()):
                self._run(outside)
            else:
                self._send(line)
        except LocaldflashError as error:
            say(str(error))

    def _run(self, command: str) -> None:
        """Run a command of the user's, if they agree."""
        say(f"Run this in {self._files.root}? What it prints goes along with your next message: {command}")
        with suppress(EOFError, KeyboardInterrupt):
            if _read_line("[y/N] ").strip().lower() in ("y", "yes"):
                output = self._chat.wait(run_command(command, Path(self._files.root)))
                self._outputs.append(output)
                _tell(output)

    def _send(self, line: str) -> None:
        """Send a message with the files that it mentions, unless one of them may not be used."""
        found = attach_mentions(line, self._files)
        for reason in found.refused:
            say(reason)
        if found.refused:
            return
        attachments = (*self._outputs, *found.attachments)
        for one in found.attachments:
            _tell(one)
        if exchange(lambda show, think: self._chat.ask(line, show, think, attachments)):
            self._outputs.clear()


def _tell(attachment: Attachment) -> None:
    say(f"[goes along: {attachment_line(attachment).text.removeprefix('▸ ')}]")


def _read_line(prompt: str) -> str:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def exchange(ask: Callable[[Show, Show], Message]) -> bool:
    """Print an answer as it comes, and its numbers; an error is printed instead, and False returned."""
    try:
        answer = print_answer(ask)
    except ContextOverflow as error:
        say(f"{error}, or start over with /new")
    except LocaldflashError as error:  # the conversation is still here: the question can be asked again
        say(str(error))
    else:
        say(_summary(answer))
        return True
    return False


def _summary(answer: Message) -> str:
    """Who has answered, and how fast."""
    named = model_name(str(answer.numbers.get("model", "")))
    who = f"{named}: " if named else ""
    match answer.numbers:
        case {"tokens": tokens, "tokens_per_second": speed, "tau": tau}:
            return f"[{who}{tokens} tokens, {speed:.0f} a second, {tau:.2f} per verify]"
        case {"tokens": tokens, "tokens_per_second": speed}:  # another server says no more
            return f"[{who}{tokens} tokens, {speed:.0f} a second]"
        case {"tokens": tokens}:
            return f"[{who}{tokens} tokens]"
    return "[stopped]"


class PlainCommands:
    """A method for each command, with its name; `left` once the user wants to leave."""

    def __init__(self, chat: ConsoleChat) -> None:
        self._chat, self.left = chat, False

    def run(self, command: Command, argument: str) -> None:
        """Run a command; what it cannot do is raised. UsageError if it needs the screen."""
        does = getattr(self, f"do_{command.name}", None)
        if does is None:
            raise UsageError(
                f"/{command.name} needs the full screen (`localdflash chat`); /help lists the available commands"
            )
        does(argument) if command.argument else does()

    def do_help(self) -> None:
        """List the commands."""
        here = [(one.usage, one.help) for one in COMMANDS if hasattr(self, f"do_{one.name}")]
        width = max(len(usage) for usage, _ in here)
        for usage, about in (*here, *_ALSO):
            say(f"{usage:<{width}}  {about}")

    def do_new(self) -> None:
        """Start a new chat."""
        self._chat.talk.new()
        say("A new conversation.")

    def do_quit(self) -> None:
        """Leave."""
        self.left = True

    def do_retry(self) -> None:
        """Answer the last message again."""
        exchange(self._chat.again)

    def do_continue(self) -> None:
        """Go on with the last answer."""
        exchange(self._chat.more)

    def do_copy(self, number: str = "") -> None:
        """Copy the last answer, or message N."""
        text = self._chat.text_of(number)
        say(self._chat.wait(copy(_copy_by_terminal, text)).line(f"message {number}" if number else "the answer"))

    def do_model(self, name: str = "") -> None:
        """List the models, or load one."""
        if name:
            try:
                about = self._chat.wait(self._chat.talk.answerer.load(name))
            except KeyboardInterrupt:
                say(f"{name} is not loaded")
                return
            say("; ".join(filter(None, (f"{about.pair} is loaded: {about.context} tokens of context", about.notice))))
            return
        for row in self._chat.wait(model_list.list_models()):
            marks = (row.memory, "" if row.here else "not here", row.why_not and f"does not run here: {row.why_not}")
            used = " (this one)" if row.id == self._chat.pair else ""
            say(f"{row.id}{used}: {', '.join(filter(None, (row.description, *marks)))}")
        say("/model ID loads one")

    def do_role(self, name: str = "") -> None:
        """Choose named instructions."""
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

    def do_set(self, given: str = "") -> None:
        """Show or change the settings."""
        if given:
            name, _, value = given.replace("=", " ").partition(" ")
            self._chat.talk.settings = self._chat.talk.settings.changed(name, value)
        settings = asdict(self._chat.talk.settings)
        if settings["seed"] is None:
            settings["seed"] = "none"
        say(", ".join(f"{name} {'auto' if value is None else value}" for name, value in settings.items()))

    def do_think(self, value: str = "") -> None:
        """Let the model think before it answers, or not."""
        self.do_set(f"thinking {value or ('off' if self._chat.talk.settings.thinking else 'on')}")

    def do_project(self, value: str = "") -> None:
        """Say whether the project's instructions go along, or decide it."""
        if value not in ("", "on", "off"):
            raise UsageError(f"expected on or off, found {value!r}")
        file = project.find_project_file(Path.cwd())
        if file is None:
            raise UsageError(f"no {project.FILE_NAME} in this folder or its parents")
        if value:
            self._chat.talk.project = file.text() if value == "on" else ""
            if self._chat.kept:
                project.remember_decision(file, value == "on")
        how = "goes along, from the next answer on" if self._chat.talk.project else "does not go along"
        say(f"{project.FILE_NAME} {how}: {file.path}")

    def look_for_project(self) -> None:
        """Take the project's instructions along where that is allowed; say so, or that there are some."""
        file = project.find_project_file(Path.cwd())
        if file is None or file.allowed is False:
            return
        if file.allowed is None:
            say(f"This project has {project.FILE_NAME}: /project on sends it along, /project off never does.")
            return
        try:
            self._chat.talk.project = file.text()
        except UsageError as error:
            say(str(error))
        else:
            say(f"[{project.FILE_NAME} goes along]")


def _copy_by_terminal(text: str) -> None:
    """Ask the terminal to copy (OSC 52), if stdout is one."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\x1b]52;c;{b64encode(text.encode()).decode()}\a")
        sys.stdout.flush()
