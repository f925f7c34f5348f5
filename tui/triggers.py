"""Finds what is being typed that can be suggested, and the suggestions: commands, arguments, files and symbols."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from localdflash.chat.attachable_files import Hit
from localdflash.chat.fuzzy import Haystack, matched
from localdflash.chat.mentions import spelled
from localdflash.text.sanitize import sanitize
from localdflash.tui import commands

Choices = Callable[[str], Sequence[str]]  # the name of a command -> what may stand after it

_COMMAND = re.compile(r"/([\w-]*)$")
_ARGUMENT = re.compile(r"/([\w-]+) +(\S*)$")
_MENTION = re.compile(r'(?:^|(?<=[\s(\[{<"\'`,;:=]))@("(?:[^"\\]|\\.)*|[^\s"]*)$')
_REQUIRED = re.compile(r"[A-Z]")  # an argument that is not in brackets
_FILES = ("attach",)  # commands whose argument is a file


@dataclass(frozen=True, slots=True)
class Asked:
    """What the text before the cursor ends with; it begins at column `start`, and `query` is what was typed of it."""

    kind: Literal["command", "argument", "file"]
    start: int
    query: str
    command: str = ""  # of an argument


@dataclass(frozen=True, slots=True)
class PromptSuggestion:
    """One row. When it is picked, `text` replaces what was typed. `mention`: it mentions a file."""

    label: str
    text: str
    hint: str = ""
    marked: tuple[int, ...] = ()
    sends: bool = False  # a whole message when it is picked with Enter
    mention: bool = False


def asked(before: str, *, first: bool) -> Asked | None:
    """What to suggest for the line up to the cursor; `first` says that it is the first line."""
    if first and (found := _COMMAND.match(before)):
        return Asked("command", 0, found[1])
    if found := _MENTION.search(before):
        return Asked("file", found.start(), found[1].removeprefix('"'))
    if first and (found := _ARGUMENT.match(before)):
        kind: Literal["file", "argument"] = "file" if found[1] in _FILES else "argument"
        return Asked(kind, found.start(2), found[2], found[1])
    return None


def command_suggestions(query: str) -> list[PromptSuggestion]:
    """Commands that begin with what was typed; if there are none, those that contain its letters."""
    found = list(commands.starting_with(query))
    if not found:
        named = Haystack([command.name for command in commands.COMMANDS], "/")
        found = [commands.COMMANDS[one.at] for one in named.best(query, len(commands.COMMANDS))]
    found.sort(key=lambda command: query.lower() not in (command.name, *command.aliases))
    return [_of_command(command, query) for command in found]


def argument_suggestions(of: Asked, choices: Choices) -> list[PromptSuggestion]:
    """What may stand after a command."""
    names = choices(of.command)
    if of.query:
        names = [names[one.at] for one in Haystack(names, "/").best(of.query, len(names))]
    return [PromptSuggestion(sanitize(name), name, "", matched(of.query, name), sends=True) for name in names]


def file_suggestion(hit: Hit, *, mentioned: bool) -> PromptSuggestion:
    """A file or a symbol, inserted as a mention, or as a plain path after a command."""
    text = f"{spelled(hit.path, hit.symbol)} " if mentioned else hit.name
    return PromptSuggestion(hit.name, text, "", hit.marked, sends=not mentioned, mention=mentioned)


def _of_command(command: commands.Command, query: str) -> PromptSuggestion:
    exact = query.lower() in (command.name, *command.aliases)
    sends = not command.argument or (exact and not _REQUIRED.match(command.argument))
    text = f"/{command.name} " if command.argument and not sends else f"/{command.name}"
    marked = tuple(at + 1 for at in matched(query, command.name)) if query else ()
    return PromptSuggestion(command.usage, text, command.help, marked, sends)
