"""Table of the chat's commands, from which slash commands, the palette, keys and the help are made."""

from dataclasses import dataclass
from difflib import get_close_matches

from localdflash.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Command:
    """Command, run by the app's `action_<name>`. `argument_name` is shown in the help; `keys` work anywhere."""

    name: str
    help: str
    group: str
    argument_name: str = ""
    keys: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """Return the command as a user types it."""
        return f"/{self.name} {self.argument_name}".rstrip()


ANSWER, COPY, CODE, SPEED = "Answers", "Copying", "Your code", "Speed"
CHATS, MODEL, VIEW = "Chats", "Model", "View"

COMMANDS: tuple[Command, ...] = (
    Command("stop", "Stop the answer.", ANSWER, keys=("escape",)),
    Command("retry", "Answer the last message again; the previous answer is kept.", ANSWER, keys=("ctrl+r",)),
    Command("edit", "Change the last message and ask again (also: Up in an empty prompt).", ANSWER),
    Command("continue", "Continue an answer that was stopped or cut off.", ANSWER, keys=("ctrl+g",)),
    Command("previous", "Show the previous version of the last answer.", ANSWER, keys=("alt+left",)),
    Command("next", "Show the next version of the last answer.", ANSWER, keys=("alt+right",)),
    Command("copy", "Copy the last answer, or message #N.", COPY, "[N]", ("ctrl+y",)),
    Command("code", "Copy code block N of the last answer; without N the last block.", COPY, "[N]", ("alt+y",)),
    Command("attach", "Attach a file to the next message (also: @file in the text).", CODE, "PATH"),
    Command("detach", "Remove all attachments.", CODE),
    Command("editor", "Write the message in your editor (EDITOR).", CODE, keys=("f7",)),
    Command(
        "diff",
        "Show the changes that the last answer proposes to your files, and apply them.",
        CODE,
        "",
        ("f6",),
        ("apply",),
    ),
    Command("undo", "Undo the last applied change.", CODE),
    Command("accepted", "Tint each token by its source: drafter, prompt lookup, grammar, target.", SPEED, "", ("f2",)),
    Command("speed", "Show acceptance by draft position, and step times.", SPEED, keys=("f3",)),
    Command("draft", "Turn drafting on or off; the speed changes, the text does not.", SPEED, "[on|off]", ("f4",)),
    Command("bench", "Answer the last message without and with drafting, and compare.", SPEED, keys=("f5",)),
    Command("new", "Start a new chat.", CHATS, keys=("ctrl+n",)),
    Command("chats", "Find and open an earlier chat.", CHATS, "[WORDS]", ("ctrl+o",), ("resume", "search")),
    Command("find", "Find words in this chat; without words, continue upwards.", CHATS, "[WORDS]", ("ctrl+f",)),
    Command("rename", "Give this chat a name.", CHATS, "NAME"),
    Command("fork", "Start a new chat that continues from message N, or from the last one.", CHATS, "[N]"),
    Command("export", "Write this chat to a file: .md or .json.", CHATS, "PATH"),
    Command("delete", "Delete this chat.", CHATS),
    Command("model", "Choose another model; shows which ones fit in memory.", MODEL, "[ID]", ("ctrl+l",)),
    Command("role", "Choose named instructions (a system prompt).", MODEL, "[NAME]"),
    Command("system", "Set your own instructions (a system prompt).", MODEL, "[TEXT]"),
    Command("project", "Include the project's AGENTS.md, or leave it out.", MODEL, "[on|off]"),
    Command("set", "Change sampling: temperature, top_p, seed, max_tokens …", MODEL, "[NAME VALUE]"),
    Command("think", "Let the model think before it answers, if it can.", MODEL, "[on|off]"),
    Command("thoughts", "Show or hide the model's thinking.", VIEW, keys=("ctrl+t",)),
    Command("theme", "Switch to another theme.", VIEW, "[NAME]"),
    Command("help", "Show commands and keys.", VIEW, keys=("f1",)),
    Command("quit", "Quit.", VIEW, keys=("ctrl+q",), aliases=("exit",)),
)

_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}


def parse(line: str) -> tuple[Command, str] | None:
    """Split a slash command into command and argument; None for any other message. UsageError if it is unknown."""
    if not line.startswith("/") or "\n" in line:
        return None
    name, _, argument = line[1:].rstrip().partition(" ")
    if "/" in name or not name:  # the message begins with a path, such as /etc/hosts
        return None
    command = _BY_NAME.get(name.lower())
    if command is None:
        near = get_close_matches(name.lower(), _BY_NAME, 1)
        hint = f"did you mean /{near[0]}?" if near else "F1 lists the commands"
        raise UsageError(f"there is no /{name}; {hint}")
    if argument.strip() and not command.argument_name:
        raise UsageError(f"/{command.name} takes no argument")
    return command, argument.strip()
