"""Help dialog (F1): every command and key, filtered by the typed words."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static

from localdflash.tui.commands import COMMANDS, Command
from localdflash.tui.screens.dialog import Dialog, Field, indented

Entries = tuple[tuple[str, str], ...]

# Keys without a command.
KEYS: Mapping[str, Entries] = {
    "In the prompt": (
        ("Enter", "Send."),
        ("Shift+Enter, Alt+Enter, Ctrl+J", "Insert a new line (also: Enter after a backslash)."),
        ("Up, Down", "Recall earlier and later messages; Up in an empty prompt edits the last message."),
        ("/", "A command; Tab or Enter takes a suggestion, arrows move, Esc closes the list."),
        ("@", "Attach a file, or a definition in one: @path, @path:12-40, @path:Name."),
        ("!", "Run a shell command after a confirmation; its output is attached."),
        ("Tab", "Move to the messages; in an empty chat, insert something to try."),
        ("Ctrl+D", "Quit, if the prompt is empty."),
        ("PgUp, PgDn", "Scroll the chat."),
    ),
    "In the messages": (
        ("Tab", "Move to the prompt."),
        ("j ], k [", "The next message, the previous one."),
        ("c", "Copy the message."),
        ("1 to 9", "Copy code block 1 to 9 of the message."),
        ("e, r, f", "Edit the last message, retry it, fork here."),
        ("Enter", "Show or hide the model's thinking."),
        ("Home, End", "Move to the first line, to the last line."),
        ("Mouse", "Drag to select, Ctrl+C copies; with Shift the terminal selects."),
    ),
    "Anywhere": (
        ("Ctrl+P", "All commands, by name."),
        ("Ctrl+C", "Copy the selection, else stop the answer, else clear the prompt; twice: quit."),
        ("Esc", "Close a dialog."),
    ),
}

_MIN_HELP_CELLS = 30  # a description with less room is shown below its key, not next to it


def key_name(key: str) -> str:
    """Return the name of a key as printed on a keyboard: ctrl+r is Ctrl+R, f2 is F2."""
    names = {"escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn"}
    return "+".join(names.get(part, part.capitalize()) for part in key.split("+"))


def sections() -> Iterator[tuple[str, Entries]]:
    """Yield the sections of the help: a title and entries (usage, description)."""
    for group, commands in groupby(COMMANDS, key=lambda command: command.group):
        yield group, tuple((_usage(command), command.help) for command in commands)
    yield from KEYS.items()


def _usage(command: Command) -> str:
    others = [f"/{alias}" for alias in command.aliases]
    return ", ".join([command.usage, *others, *map(key_name, command.keys)])


def help_text(words: str, width: int) -> Content:
    """Return the entries that contain all the words, laid out for a width in cells."""
    terms = words.lower().split()
    blocks = []
    for title, entries in sections():
        matching = [entry for entry in entries if all(word in f"{title} {' '.join(entry)}".lower() for word in terms)]
        if matching:
            rows = [_entry(usage, effect, width) for usage, effect in matching]
            blocks.append(Content("\n").join([Content.styled(title, "bold $primary"), *rows]))
    return Content("\n\n").join(blocks) if blocks else Content("Nothing has these words.")


def _entry(usage: str, effect: str, width: int) -> Content:
    column = 2 + max(len(usage) for _, entries in sections() for usage, _ in entries)
    if width < column + _MIN_HELP_CELLS:
        return Content.assemble((usage, "bold"), "\n", indented(effect, width, 2))
    return Content.assemble((f"{usage:<{column}}", "bold"), indented(effect, width, column)[column:])


class HelpScreen(Dialog[None]):
    """Dialog with the help; a search field narrows it, and paging keys scroll it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "close", show=False, priority=True),
        *(
            Binding(key, f"scroll_help('{direction}')", show=False)
            for key, direction in (("down", "down"), ("up", "up"), ("pagedown", "page_down"), ("pageup", "page_up"))
        ),
    ]
    DEFAULT_CSS = """
    HelpScreen {
        #box { height: 90%; max-width: 110; }
        #all { height: 1fr; margin: 1 0; scrollbar-gutter: stable; }
        &.-low #all { margin: 0; }
    }
    """

    def __init__(self) -> None:
        super().__init__("Commands and keys", "Type to search   Arrows and PgDn scroll   Esc closes")
        self._all, self._text = VerticalScroll(id="all", can_focus=False), Static(markup=False)

    def body(self) -> Iterable[Widget]:
        """Yield the search field and the text."""
        yield Field(placeholder="Search")
        with self._all:
            yield self._text

    def on_mount(self) -> None:
        """Focus the search field."""
        self.query_one(Field).focus()

    def on_resize(self) -> None:
        """Redraw for the new width."""
        self.call_after_refresh(self._draw)

    @on(Input.Changed)
    def _draw(self) -> None:
        if width := self._all.scrollable_content_region.width:
            self._text.update(help_text(self.query_one(Field).value, width))

    def action_scroll_help(self, direction: str) -> None:
        """Scroll while the field has the focus."""
        getattr(self._all, f"scroll_{direction}")(animate=False)
