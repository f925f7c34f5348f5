"""Suggestions of commands, arguments, files and symbols, and the list over the prompt that shows them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.widget import Widget

from localdflash.chat.attachable_files import FileMatch
from localdflash.chat.fuzzy import Haystack, match_positions
from localdflash.chat.mentions import spell_mention
from localdflash.text.sanitize import sanitize
from localdflash.tui import commands
from localdflash.tui.styled_lines import cut

ArgumentChoices = Callable[[str], Sequence[str]]  # name of a command -> its possible arguments

_COMMAND = re.compile(r"/([\w-]*)$")
_ARGUMENT = re.compile(r"/([\w-]+) +(\S*)$")
_MENTION = re.compile(r'(?:^|(?<=[\s(\[{<"\'`,;:=]))@("(?:[^"\\]|\\.)*|[^\s"]*)$')


@dataclass(frozen=True, slots=True)
class CompletionContext:
    """Word to complete before the cursor: its kind, start column and typed part (`query`)."""

    kind: Literal["command", "argument", "file"]
    start: int
    query: str
    command: str = ""  # the command whose argument is completed


@dataclass(frozen=True, slots=True)
class PromptSuggestion:
    """Row of the suggestions. `text` replaces the typed word. `marked`: indices of `label` that match it."""

    label: str
    text: str
    hint: str = ""
    marked: tuple[int, ...] = ()
    sends: bool = False  # whether Enter, after it inserted the text, also sends the prompt
    is_mention: bool = False  # whether `text` mentions a file


def completion_context(before: str, *, first: bool) -> CompletionContext | None:
    """Return the word to complete at the end of a line; `first`: the line is the first of the prompt."""
    if first and (match := _COMMAND.match(before)):
        return CompletionContext("command", 0, match[1])
    if match := _MENTION.search(before):
        return CompletionContext("file", match.start(), match[1].removeprefix('"'))
    if first and (match := _ARGUMENT.match(before)):
        kind: Literal["file", "argument"] = "file" if match[1] == "attach" else "argument"
        return CompletionContext(kind, match.start(2), match[2], match[1])
    return None


def command_suggestions(query: str) -> list[PromptSuggestion]:
    """Return the commands that begin with the query, else those that match it fuzzily."""
    typed = query.lower()
    matches = [one for one in commands.COMMANDS if any(name.startswith(typed) for name in (one.name, *one.aliases))]
    if not matches:
        named = Haystack([command.name for command in commands.COMMANDS], "/")
        matches = [commands.COMMANDS[at] for _, at in named.find_best(query, len(commands.COMMANDS))]
    matches.sort(key=lambda command: typed not in (command.name, *command.aliases))
    return [_command_suggestion(command, query) for command in matches]


def argument_suggestions(context: CompletionContext, choices: ArgumentChoices) -> list[PromptSuggestion]:
    """Return the arguments of a command that match the query."""
    names, query = choices(context.command), context.query
    if query:
        names = [names[at] for _, at in Haystack(names, "/").find_best(query, len(names))]
    return [PromptSuggestion(sanitize(name), name, "", match_positions(query, name), sends=True) for name in names]


def file_suggestion(hit: FileMatch, *, mentioned: bool) -> PromptSuggestion:
    """Return the suggestion of a file or symbol, as a mention or, after a command, as a plain path."""
    text = f"{spell_mention(hit.path, hit.symbol)} " if mentioned else hit.name
    return PromptSuggestion(hit.name, text, "", hit.marked, sends=not mentioned, is_mention=mentioned)


def _command_suggestion(command: commands.Command, query: str) -> PromptSuggestion:
    exact = query.lower() in (command.name, *command.aliases)
    sends = not command.argument_name or (exact and command.argument_name.startswith("["))
    text = f"/{command.name}" if sends else f"/{command.name} "
    marked = tuple(at + 1 for at in match_positions(query, command.name)) if query else ()
    return PromptSuggestion(command.usage, text, command.help, marked, sends)


MAX_SUGGESTION_ROWS = 8
_GAP_CELLS = 2  # blank cells between a label and its hint
_MIN_HINT_CELLS = 12


class Suggestions(Widget):
    """List of suggestions; hidden while empty."""

    DEFAULT_CSS = """
    Suggestions {
        display: none; overlay: screen; constrain: inside inside;
        width: 1fr; height: auto; max-height: 8; background: $panel; color: $foreground;
    }
    """

    def __init__(self, accept: Callable[[PromptSuggestion], None]) -> None:
        """Create the list; `accept` is called with the clicked row."""
        super().__init__()
        self._accept = accept
        self.rows: Sequence[PromptSuggestion] = ()
        self._note = ""
        self._at = self._top = self._height = 0  # highlighted row, first row in view, rows in view

    @property
    def chosen(self) -> PromptSuggestion | None:
        """Return the highlighted row."""
        return self.rows[self._at] if self.rows else None

    def show(self, rows: Sequence[PromptSuggestion], *, above: int, note: str = "") -> None:
        """Show rows, the first one highlighted, or a note if there are none; `above` is the number of rows free."""
        self.rows, self._note, self._at, self._top = rows, note, 0, 0
        self._height = max(1, min(MAX_SUGGESTION_ROWS, len(rows) or 1, above))
        self.styles.offset = (0, -self._height)
        self.display = bool(rows or note)
        self.refresh(layout=True)

    def close(self) -> None:
        """Hide the list."""
        if self.display:
            self.rows, self._note, self.display = (), "", False

    def move(self, step: int) -> None:
        """Move the highlight, wrapping around at the ends."""
        if not self.rows:
            return
        self._at = (self._at + step) % len(self.rows)
        self._top = min(max(self._top, self._at - self._height + 1), self._at)
        self.refresh()

    def get_content_height(self, *_: object) -> int:
        """Return the number of rows shown."""
        return self._height if self.rows or self._note else 0

    def render(self) -> Content:
        """Return the rows in view."""
        width = self.size.width
        if not self.rows:
            return Content.styled(cut(f" {sanitize(self._note)}", width), "$text-muted")
        shown = self.rows[self._top : self._top + self._height]
        return Content("\n").join(_row(row, width, self._top + number == self._at) for number, row in enumerate(shown))

    def on_click(self, event: events.Click) -> None:
        """Pick the row that was clicked."""
        row = self._top + event.y
        if row < len(self.rows):
            self._at = row
            self._accept(self.rows[row])


def _row(row: PromptSuggestion, width: int, chosen: bool) -> Content:
    """Format a row as `▸ label  hint`; a label that is too long keeps its end."""
    room = max(width - 3, 1)
    label, marked = sanitize(row.label), row.marked
    if label != row.label:
        marked = ()
    if (over := cell_len(label) - room) > 0:
        visible = _end(label, cell_len(label) - over - 1)
        lost = len(label) - len(visible)
        label, marked = f"…{visible}", tuple(at - lost + 1 for at in marked if at >= lost)
    content = Content(f"{'▸' if chosen else ' '} {label}")
    for at in marked:
        content = content.stylize("bold $primary underline", at + 2, at + 3)
    left = width - content.cell_length - _GAP_CELLS - 1
    if row.hint and left >= _MIN_HINT_CELLS:
        content = Content.assemble(content, " " * _GAP_CELLS, (cut(sanitize(row.hint), left), "$text-muted"))
    content = content.pad_right(max(0, width - content.cell_length))
    return content.stylize_before("$block-cursor-foreground on $block-cursor-background") if chosen else content


def _end(text: str, width: int) -> str:
    """Return the last `width` cells of a text."""
    start = len(text)
    while start and cell_len(text[start - 1 :]) <= width:
        start -= 1
    return text[start:]
