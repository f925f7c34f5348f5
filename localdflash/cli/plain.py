"""The chat line by line: for screen readers, for simple terminals, and for pipes."""

import io
import sys
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

from localdflash.base.errors import DeviceFailed, LocaldflashError
from localdflash.chat.attachable_files import Files
from localdflash.chat.mentions import attach
from localdflash.chat.messages import Attachment
from localdflash.chat.shell_command import command_of, output_of
from localdflash.cli.output import say
from localdflash.cli.plain_commands import PlainCommands, exchange
from localdflash.cli.talking import Talking
from localdflash.tui.captions import attachment_line
from localdflash.tui.commands import parse

SMALL_MODEL = "This is the small model that ships with localdflash: it knows some Python and little else."
HOW_TO_LEAVE = "Ctrl-C stops an answer; Ctrl-D, or Ctrl-C at the prompt, leaves. /help lists the commands."


def converse(talking: Talking) -> int:
    """Ask for lines and answer them until the input ends; return the exit code."""
    if talking.pair == "embedded":
        say(f"{SMALL_MODEL} `localdflash models list` names larger pairs.")
    say(HOW_TO_LEAVE)
    with suppress(ImportError):
        import_module("readline")  # gives `input` arrow keys and a history
    with closing(Files(Path.cwd(), say)) as files:
        _Lines(talking, files).take_all()
    if talking.session:
        say(f"localdflash chat --plain --resume {talking.session} goes on with this chat")
    return 0


class _Lines:
    """What is done with a line: a command is run, `!command` by the shell, anything else is sent."""

    def __init__(self, talking: Talking, files: Files) -> None:
        self._talking, self._files = talking, files
        self._commands = PlainCommands(talking)
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
            elif outside := command_of(line.strip()):
                self._run(outside)
            else:
                self._send(line)
        except DeviceFailed:  # that of this process: no question can be answered any more
            raise
        except LocaldflashError as error:
            say(str(error))

    def _run(self, command: str) -> None:
        """Run a command of the user's, if they agree."""
        say(f"Run this in {self._files.root}? What it prints goes along with your next message: {command}")
        with suppress(EOFError, KeyboardInterrupt):
            if _read_line("[y/N] ").strip().lower() in ("y", "yes"):
                output = self._talking.wait(output_of(command, Path(self._files.root)))
                self._outputs.append(output)
                _tell(output)

    def _send(self, line: str) -> None:
        """Send a message with the files that it mentions, unless one of them may not be used."""
        found = attach(line, self._files)
        for reason in found.refused:
            say(reason)
        if found.refused:
            return
        attachments = (*self._outputs, *found.attachments)
        for one in found.attachments:
            _tell(one)
        if exchange(lambda show, think: self._talking.ask(line, show, think, attachments)):
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
