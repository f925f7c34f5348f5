"""The table of all commands of the chat. Slash commands, the palette, keys and help are made from it.

`action` names a method of the app, `action_<action>`; one that takes an argument gets it as text, or "".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from localdflash.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Command:
    """Command of the chat. `argument` is its placeholder in the help, or ""; `keys` work anywhere."""

    name: str
    help: str
    group: str
    action: str
    argument: str = ""
    keys: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """Return the command as a user types it."""
        return f"/{self.name} {self.argument}".rstrip()


ANSWER, COPY, CODE, SPEED, CHATS, MODEL, VIEW = (
    "Answers",
    "Copying",
    "Your code",
    "Speed",
    "Chats",
    "Model",
    "View",
)

COMMANDS: tuple[Command, ...] = (
    Command("stop", "Stop the answer.", ANSWER, "stop", keys=("escape",)),
    Command("retry", "Answer the last message again; the previous answer is kept.", ANSWER, "retry", keys=("ctrl+r",)),
    Command("edit", "Change the last message and ask again (also: Up in an empty prompt).", ANSWER, "edit"),
    Command("continue", "Continue an answer that was stopped or cut off.", ANSWER, "go_on", keys=("ctrl+g",)),
    Command("previous", "Show the previous version of the last answer.", ANSWER, "previous", keys=("alt+left",)),
    Command("next", "Show the next version of the last answer.", ANSWER, "next", keys=("alt+right",)),
    Command("copy", "Copy the last answer, or message N as it is numbered.", COPY, "copy", "[N]", ("ctrl+y",)),
    Command("code", "Copy code block N of the last answer; without N the last block.", COPY, "code", "[N]", ("alt+y",)),
    Command("attach", "Attach a file to the next message (also: @file in the text).", CODE, "attach", "PATH"),
    Command("detach", "Remove all attachments.", CODE, "detach"),
    Command("editor", "Write the message in your editor (EDITOR).", CODE, "editor", keys=("f7",)),
    Command(
        "diff",
        "Show the changes that the last answer proposes to your files, and apply them.",
        CODE,
        "diff",
        keys=("f6",),
        aliases=("apply",),
    ),
    Command("undo", "Undo the last applied change.", CODE, "undo"),
    Command(
        "accepted",
        "Tint each token by its source: drafter, prompt lookup, target model.",
        SPEED,
        "accepted",
        keys=("f2",),
    ),
    Command("speed", "Show acceptance by draft position, and step times.", SPEED, "speed", keys=("f3",)),
    Command(
        "draft",
        "Turn drafting on or off; the speed changes, the text does not.",
        SPEED,
        "draft",
        "[on|off]",
        ("f4",),
    ),
    Command("bench", "Answer the last message without and with drafting, and compare.", SPEED, "bench", keys=("f5",)),
    Command("new", "Start a new chat.", CHATS, "new", keys=("ctrl+n",)),
    Command("chats", "Find and open an earlier chat.", CHATS, "chats", "[WORDS]", ("ctrl+o",), ("resume", "search")),
    Command("find", "Find words in this chat; again: the previous match.", CHATS, "find", "[WORDS]", ("ctrl+f",)),
    Command("rename", "Give this chat a name.", CHATS, "rename", "NAME"),
    Command("fork", "Start a new chat that continues from message N, or from the last one.", CHATS, "fork", "[N]"),
    Command("export", "Write this chat to a file: .md or .json.", CHATS, "export", "PATH"),
    Command("delete", "Delete this chat.", CHATS, "delete"),
    Command("model", "Choose another model; shows which ones fit in memory.", MODEL, "model", "[ID]", ("ctrl+l",)),
    Command("role", "Choose named instructions (a system prompt).", MODEL, "role", "[NAME]"),
    Command("system", "Set your own instructions (a system prompt).", MODEL, "system", "[TEXT]"),
    Command("project", "Include the project's AGENTS.md, or leave it out.", MODEL, "project", "[on|off]"),
    Command("set", "Change sampling: temperature, top_p, seed, max_tokens …", MODEL, "set", "[NAME VALUE]"),
    Command("think", "Let the model think before it answers, if it can.", MODEL, "think", "[on|off]"),
    Command("thoughts", "Show or hide the model's thinking.", VIEW, "thoughts", keys=("ctrl+t",)),
    Command("theme", "Switch to another theme.", VIEW, "theme", "[NAME]"),
    Command("help", "Show commands and keys.", VIEW, "help", keys=("f1",)),
    Command("quit", "Quit.", VIEW, "quit", keys=("ctrl+q",), aliases=("exit",)),
)

_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}


def parse(line: str) -> tuple[Command, str] | None:
    """Split a line that begins with a slash into command and argument; None if the line is a message.

    UsageError for a command that does not exist names what may have been meant. A path such as /etc/hosts is a message.
    """
    if not line.startswith("/") or "\n" in line:
        return None
    name, _, argument = line[1:].rstrip().partition(" ")
    if "/" in name or not name:
        return None
    command = _BY_NAME.get(name.lower())
    if command is None:
        near = get_close_matches(name.lower(), _BY_NAME, 1)
        raise UsageError(
            f"there is no /{name}" + (f"; did you mean /{near[0]}?" if near else "; F1 lists the commands")
        )
    if argument.strip() and not command.argument:
        raise UsageError(f"/{command.name} takes nothing after it")
    return command, argument.strip()


def starting_with(text: str) -> Sequence[Command]:
    """Return the commands that begin with what was typed."""
    return [
        command for command in COMMANDS if any(n.startswith(text.lower()) for n in (command.name, *command.aliases))
    ]
