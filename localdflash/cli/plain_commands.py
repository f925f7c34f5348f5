"""The commands of the chat line by line: those of the screen that need none, by the same names."""

import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from localdflash.base.errors import ContextOverflow, DeviceFailed, LocaldflashError, UsageError
from localdflash.chat import model_list, project
from localdflash.chat.messages import Message
from localdflash.cli.headless import print_answer
from localdflash.cli.output import say
from localdflash.cli.talking import Show, Talking
from localdflash.tui.captions import model_name
from localdflash.tui.clipboard import copy
from localdflash.tui.commands import COMMANDS, Command

_ALSO = (
    ("@path", "A file that goes along: @path, @path:12-40, @path:Name."),
    ("!command", "Run a command of yours; what it prints goes along with the next message. You are asked first."),
    ("Ctrl-C", "Stop the answer; at the prompt, leave. So does Ctrl-D."),
)


def exchange(ask: Callable[[Show, Show], Message]) -> bool:
    """Print an answer as it comes, and its numbers; an error is printed instead, and False returned."""
    try:
        answer = print_answer(ask)
    except ContextOverflow as error:
        say(f"{error}, or start over with /new")
    except DeviceFailed:  # that of this process: no question can be answered any more
        raise
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

    def __init__(self, talking: Talking) -> None:
        self._talking, self.left = talking, False

    def run(self, command: Command, argument: str) -> None:
        """Run a command; what it cannot do is raised. UsageError if it needs the screen."""
        does = getattr(self, f"do_{command.name}", None)
        if does is None:
            raise UsageError(f"/{command.name} needs the full screen: `localdflash chat`; /help lists what there is")
        does(argument) if command.argument else does()

    def do_help(self) -> None:
        """List the commands."""
        here = [(one.usage, one.help) for one in COMMANDS if hasattr(self, f"do_{one.name}")]
        width = max(len(usage) for usage, _ in here)
        for usage, about in (*here, *_ALSO):
            say(f"{usage:<{width}}  {about}")

    def do_new(self) -> None:
        """Start a new chat."""
        self._talking.new()
        say("A new conversation.")

    def do_quit(self) -> None:
        """Leave."""
        self.left = True

    def do_retry(self) -> None:
        """Answer the last message again."""
        exchange(self._talking.again)

    def do_continue(self) -> None:
        """Go on with the last answer."""
        exchange(self._talking.more)

    def do_copy(self, number: str = "") -> None:
        """Copy the last answer, or message N."""
        text = self._talking.text_of(number)
        say(self._talking.wait(copy(_Terminal(), text)).line(f"message {number}" if number else "the answer"))

    def do_model(self, name: str = "") -> None:
        """List the models, or load one."""
        if name:
            try:
                about = self._talking.load(name)
            except KeyboardInterrupt:
                say(f"{name} is not loaded")
                return
            say("; ".join(filter(None, (f"{about.pair} is loaded: {about.context} tokens of context", about.notice))))
            return
        for row in self._talking.wait(model_list.rows()):
            marks = (row.memory, "" if row.here else "not here", row.why_not and f"does not run here: {row.why_not}")
            used = " (this one)" if row.id == self._talking.pair else ""
            say(f"{row.id}{used}: {', '.join(filter(None, (row.description, *marks)))}")
        say("/model ID loads one")

    def do_role(self, name: str = "") -> None:
        """Choose named instructions."""
        from localdflash.chat.roles import role, roles

        if not name:
            say(f"/role NAME, one of none, {', '.join(roles(say))}")
            return
        self._talking.instruct(role(name))
        say(f"role {name}, from the next answer on")

    def do_system(self, text: str = "") -> None:
        """Show or set the user's own instructions."""
        if text:
            self._talking.instruct(text)
        say(f"Instructions before the chat: {self._talking.system or 'none'}")

    def do_set(self, given: str = "") -> None:
        """Show or change the settings."""
        if given:
            name, _, value = given.replace("=", " ").partition(" ")
            self._talking.settings = self._talking.settings.changed(name, value)
        say(", ".join(f"{name} {'auto' if value is None else value}" for name, value in _settings(self._talking)))

    def do_think(self, value: str = "") -> None:
        """Let the model think before it answers, or not."""
        self.do_set(f"thinking {value or ('off' if self._talking.settings.thinking else 'on')}")

    def do_project(self, value: str = "") -> None:
        """Say whether the project's instructions go along, or decide it."""
        if value not in ("", "on", "off"):
            raise UsageError(f"expected on or off, found {value!r}")
        file = project.find(Path.cwd())
        if file is None:
            raise UsageError(f"there is no {project.NAME} in this folder or above it")
        if value:
            self._talking.project = file.text() if value == "on" else ""
            if self._talking.kept:
                project.decide(file, value == "on")
        how = "goes along, from the next answer on" if self._talking.project else "does not go along"
        say(f"{project.NAME} {how}: {file.path}")

    def look_for_project(self) -> None:
        """Take the project's instructions along where that is allowed; say so, or that there are some."""
        file = project.find(Path.cwd())
        if file is None or file.allowed is False:
            return
        if file.allowed is None:
            say(f"This project has {project.NAME}: /project on sends it along, /project off never does.")
            return
        try:
            self._talking.project = file.text()
        except UsageError as error:
            say(str(error))
        else:
            say(f"[{project.NAME} goes along]")


def _settings(talking: Talking) -> Iterator[tuple[str, object]]:
    """The settings by name; a seed may be None, which is none."""
    for name, value in asdict(talking.settings).items():
        yield name, "none" if name == "seed" and value is None else value


class _Terminal:
    """The terminal of stdout, as `clipboard.Terminal`."""

    def copy_to_clipboard(self, text: str) -> None:
        """See `clipboard.Terminal`: OSC 52, where stdout is a terminal."""
        if sys.stdout.isatty():
            sys.stdout.write(f"\x1b]52;c;{b64encode(text.encode()).decode()}\a")
            sys.stdout.flush()
